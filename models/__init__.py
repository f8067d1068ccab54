"""The recurrent networks, their weights in other libraries' layouts, and proofs about them."""
