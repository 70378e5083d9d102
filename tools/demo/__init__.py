"""The demo folder: a small real model, trained adapters, marker adapters, keys and settings."""
