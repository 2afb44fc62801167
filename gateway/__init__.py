"""The client side, thin: it validates, accepts, rings, reads and follows; everything else is a job."""
