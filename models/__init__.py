"""The recurrent networks, their weights in other libraries' layouts, and what can be proved of them."""
