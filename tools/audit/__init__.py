"""``tools audit``: is the audit whole, and what does it say."""
