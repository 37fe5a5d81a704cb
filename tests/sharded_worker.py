"""Two processes whose parameters FSDP2 shards: do the copies and the optimizer reset reach every shard?"""

import sys

import torch
from distributed_worker import end
from peft import LoraConfig, get_peft_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoModelForCausalLM
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer

from trl_prorl.resets.optimizer_state import reset_optimizer
from trl_prorl.scoring.references import AdapterReference, SnapshotReference, frozen_adapter


def whole(tensors):
    return [tensor.detach().full_tensor().clone() for tensor in tensors]


def shard(model, mesh):
    for layer in (module for module in model.modules() if isinstance(module, Qwen2DecoderLayer)):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main(path, kind):
    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(path)
    if kind == "lora":
        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
        frozen_adapter(model, "ref")
        reference = AdapterReference(shard(model, mesh))
    else:
        shard(model, mesh)
        reference = SnapshotReference(model, shard(AutoModelForCausalLM.from_pretrained(path), mesh))
    trained = [param for param in model.parameters() if param.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.1)
    model(input_ids=torch.arange(8)[None], labels=torch.arange(8)[None]).loss.backward()
    optimizer.step()

    references, policies = zip(*reference.pairs(), strict=True)
    assert all(isinstance(tensor, torch.distributed.tensor.DTensor) for tensor in (*references, *policies))
    old, new = whole(references), whole(policies)
    assert any(not torch.equal(a, b) for a, b in zip(old, new, strict=True))
    reference.move(0.25)
    for ref, a, b in zip(whole(references), old, new, strict=True):
        assert torch.allclose(ref, 0.75 * a + 0.25 * b, atol=1e-6)
    reference.move(1.0)
    assert all(torch.equal(a, b) for a, b in zip(whole(references), new, strict=True))

    moments = [state["exp_avg"] for state in optimizer.state.values()]
    before = whole(moments)
    reset_optimizer(optimizer, "soft", 0.5)
    assert all(torch.equal(a, 0.5 * b) for a, b in zip(whole(moments), before, strict=True))
    reset_optimizer(optimizer, "hard")
    assert all(moment.eq(0).all() for moment in whole(moments))
    torch.distributed.destroy_process_group()
    print("every shard was reached")


if __name__ == "__main__":
    main(*sys.argv[1:])
    end()
