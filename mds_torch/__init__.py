"""Streaming MDS data sets into PyTorch training."""

from mds_torch.cache import clean_cache
from mds_torch.dataloader import StreamingDataLoader
from mds_torch.dataset import StreamingDataset
from mds_torch.huggingface import TrainerMixin
from mds_torch.packing import PackTokens
from mds_torch.stream import Stream

__all__ = ["PackTokens", "Stream", "StreamingDataLoader", "StreamingDataset", "TrainerMixin", "clean_cache"]
