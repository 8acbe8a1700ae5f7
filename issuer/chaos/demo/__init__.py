"""`issuer demo`: the main job, before one's eyes, on servers of its own."""
