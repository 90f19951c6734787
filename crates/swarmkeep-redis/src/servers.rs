//! Real servers and clusters on loopback ports, and what can happen to them.
