"""Streaming MDS data sets into PyTorch training."""

from mds_torch.dataloader import StreamingDataLoader
from mds_torch.dataset import StreamingDataset

__all__ = ["StreamingDataLoader", "StreamingDataset"]
