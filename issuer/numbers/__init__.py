"""How the numbers that users see are made of the counter: pure arithmetic and text, no I/O, no clock."""
