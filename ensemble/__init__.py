"""What is decided before the engine hears of a request: who calls, what they may use, which way."""
