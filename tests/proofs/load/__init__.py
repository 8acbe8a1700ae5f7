"""Many clients for a long time: nothing repeats, fails, grows or leaks."""
