"""The HTTP calls of other number servers: Leaf, its port to Go, and tinyid. Each family is loaded only if it is on."""
