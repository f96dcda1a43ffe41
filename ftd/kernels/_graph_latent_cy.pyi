"""Types of the compiled module: the API is reference_latent's, though nothing is inherited at run time."""

from ftd.kernels import _graph_encoder_cy, reference_latent

class LatentOps(reference_latent.LatentOps, _graph_encoder_cy.EncoderOps):
    """The ops of attention over latents."""
