"""The floor of a step: products and the weights' way through memory, on this machine, with nothing around them."""

import torch
from trl.trainer.utils import add_fused_lm_head

from trl_prorl.embedded.making import byte_tokenizer
from trl_prorl.eval.stepcost.settings import Batches, new_model
from trl_prorl.eval.stepcost.trainers import Stopwatch
from trl_prorl.rollout.compact import distinct, padded_left
from trl_prorl.scoring.frozen_head import add_frozen_head
from trl_prorl.scoring.packing import packed_logps


PLACES = 1024  # of the products whose rate is measured


class Floor:
    """
    An arm without trainer. Its update is a forward and a backward of the same packed tokens, in the dtype of the
    frozen weights and without adapters; its generation is computed from two measured rates, those of copying the
    weights and of multiplying by them: every decode step reads them once, and computes the rows that have not ended.
    """

    def __init__(self, args, batches: Batches, iterations: int):
        self.args, self.batches, self.iterations, self.generations = args, batches, iterations, 0
        self.model = new_model(args, byte_tokenizer()).requires_grad_(False)
        add_fused_lm_head(self.model, outputs=("log_probs", "entropy"))
        add_frozen_head(self.model, 1.0)
        self.model.get_input_embeddings().register_forward_hook(lambda module, given, states: states.requires_grad_())
        self.watch = Stopwatch(torch.device(args.device), args.clock)
        # The head is read in every step, an embedding is not; tied, they are one.
        self.weights = [layer.weight for layer in self.model.modules() if isinstance(layer, torch.nn.Linear)]

    def generation_seconds(self, batches: Batches, number: int) -> float:
        """Of one generation of a batch."""
        prompts, completions = batches.draw(number)
        size = sum(weight.numel() for weight in self.weights)
        inputs = {width: self.weights[0].new_ones(PLACES, width) for width in {w.shape[1] for w in self.weights}}
        began = self.watch.now()
        for weight in self.weights:
            inputs[weight.shape[1]] @ weight.t()
        a_product = (self.watch.now() - began) / (PLACES * size)
        head = max(self.weights, key=torch.Tensor.numel)
        copy = head.clone()  # its memory is there
        began = self.watch.now()
        copy.copy_(head)
        reading = (self.watch.now() - began) / (2 * head.numel()) * size  # a copy reads and writes
        once, each = (sum(map(len, part)) for part in (distinct(prompts)[0], completions))
        return max(map(len, completions)) * reading + a_product * (once * (size - head.numel()) + each * size)

    def train(self) -> None:
        """The updates of one generation."""
        args = self.args
        prompts, completions = self.batches.draw(self.generations)
        self.generations += 1
        began = self.watch.now()
        for _ in range(self.iterations):
            for first in range(0, len(prompts), args.micro_batch):
                rows = slice(first, first + args.micro_batch)
                before, mask = padded_left(prompts[rows], 0)
                after, seen = (part.flip(1) for part in padded_left([ids[::-1] for ids in completions[rows]], 0))
                ids, mask = (torch.cat(part, dim=1).to(args.device) for part in ((before, after), (mask, seen)))
                packed_logps(self.model, ids, mask, after.shape[1])[0].sum().backward()
        self.watch.seconds["step"] = self.watch.now() - began
