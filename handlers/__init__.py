"""Framework-agnostic agents: what answers a chat, whatever it is built with."""
