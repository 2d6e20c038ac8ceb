"""Which sample comes when: pure functions of (seed, epoch, position), without I/O and without torch."""

from mds_torch.order.deal import Deal
from mds_torch.order.sequence import EpochOrder

__all__ = ["Deal", "EpochOrder"]
