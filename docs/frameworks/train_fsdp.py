"""FSDP2 on a device mesh, with distributed checkpoints (DCP) that hold the loader's state.

    python -m torch.distributed.run --standalone --nproc-per-node 4 docs/frameworks/train_fsdp.py FOLDER CHECKPOINTS

Four ranks in two groups of tensor parallelism: the two ranks of a group read the same samples, and the model's
parameters are sharded over the groups. Started again, it goes on from the last checkpoint.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from mds_torch import StreamingDataLoader, StreamingDataset

EPOCHS = 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x):
        return self.layer(x).squeeze(1)


class Training:
    """What a checkpoint holds of model and optimizer; DCP takes the loader as it is."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def last_checkpoint(folder):
    """Give the last whole checkpoint, or None: the same one on every rank.

    Only rank 0 looks. If each did, a late one could find what the others have saved meanwhile, and all would hang.
    """
    # DCP writes .metadata last: without it, saving was interrupted.
    found = sorted(str(file.parent) for file in Path(folder).glob("*/.metadata")) if dist.get_rank() == 0 else []
    answer = [found[-1] if found else None]
    dist.broadcast_object_list(answer)
    return answer[0]


def main(folder, checkpoints, steps, by):
    dist.init_process_group("gloo")  # "nccl" with GPUs
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(1)
    model = Model()
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    # Which ranks read the same: from the mesh, or said by hand (two in a row).
    place = {"device_mesh": mesh["dp"]} if by == "mesh" else {"replication": 2}
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=8, **place)
    loader = StreamingDataLoader(dataset, batch_size=8, num_workers=1)

    everything = {"training": Training(model, optimizer), "loader": loader}
    done, step = 0, 0
    if saved := last_checkpoint(checkpoints):
        dcp.load(everything, checkpoint_id=saved)
        step = int(os.path.basename(saved))

    while (epoch := loader.state_dict()["epoch"]) < EPOCHS:
        for batch in loader:
            loss = nn.functional.mse_loss(model(batch["x"]), batch["y"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done, step = done + 1, step + 1
            if step % 5 == 0 or done == steps:
                dcp.save(everything, checkpoint_id=os.path.join(checkpoints, f"{step:06d}"))
            if done == steps:
                break
        if done == steps:
            break
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("checkpoints")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--by", default="mesh", choices=["mesh", "replication"])
    arguments = parser.parse_args()
    main(arguments.folder, arguments.checkpoints, arguments.steps, arguments.by)
