"""Which sample comes when: pure functions of (seed, epoch, position), without I/O and without torch."""
