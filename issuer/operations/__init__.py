"""The public calls as steps, for both drivers."""
