"""Load tests: scenarios with locust against a server of their own, judged by a budget."""
