"""Engine arguments that fit a memory."""
