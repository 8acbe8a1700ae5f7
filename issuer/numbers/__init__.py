"""Making of the numbers that users see from the counter: pure arithmetic and text, no I/O, no clock."""
