"""The store on disk, and the protocol that moves models between stores; never opens a tensor."""
