"""Types of the compiled module: the API is graph_latent_ref's, though nothing is inherited at run time."""

from ftd.kernels import _graph_encoder_cy, graph_latent_ref

class LatentOps(graph_latent_ref.LatentOps, _graph_encoder_cy.EncoderOps):
    """The ops of attention over latents."""
