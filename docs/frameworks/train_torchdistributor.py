"""TorchDistributor: from a DataFrame to two training processes, in one Spark session.

    python docs/frameworks/train_torchdistributor.py FOLDER CHECKPOINT

On a cluster, without local_mode, the processes run on the workers. Started again, it goes on from the checkpoint.
"""

import argparse
import os

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from table import write


def train(folder, checkpoint, steps):
    """Train in each process: all that it needs is imported and set in here, as it runs elsewhere."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from mds_torch import StreamingDataLoader, StreamingDataset

    # Credentials of stores, such as DATABRICKS_HOST and DATABRICKS_TOKEN, are set here, too, in os.environ.

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(8, 1)

        def forward(self, x):
            return self.layer(x).squeeze(1)

    dist.init_process_group("gloo")  # "nccl" with GPUs
    torch.manual_seed(1)
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=1)
    if os.path.exists(checkpoint):
        state = torch.load(checkpoint)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])

    done, loss = 0, None
    while loader.state_dict()["epoch"] < 2 and done != steps:
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
    if dist.get_rank() == 0:
        state = {
            "model": model.module.state_dict(),
            "optimizer": optimizer.state_dict(),
            "loader": loader.state_dict(),  # the same on every rank
        }
        torch.save(state, checkpoint)
    dist.destroy_process_group()
    return None if loss is None else loss.item()


def main(folder, checkpoint, steps):
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    write(spark, folder)
    distributor = TorchDistributor(num_processes=2, local_mode=True, use_gpu=False)
    # What the process of rank 0 returns.
    loss = distributor.run(train, os.path.abspath(folder), os.path.abspath(checkpoint), steps)
    print(f"loss {loss:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("checkpoint")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.checkpoint, arguments.steps)
