"""Normal log densities of every step under every state, and the weighted moments that fit them: see `op`."""
