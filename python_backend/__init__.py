"""What happens once a request is allowed: tickets, adapters, the engine, the answer."""
