"""Where [`ProRLTrainer`] lets an export look at an update. Without an export nothing happens here."""

from .live import NextUpdate


class ExchangeMixin:
    """Part of [`ProRLTrainer`]: the moments of an update that no callback of transformers sees."""

    exporting: NextUpdate | None = None

    def compute_loss(self, model, inputs, *args, **kwargs):
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if self.exporting is not None and self.model.training:
            self.exporting.micro_batch(inputs)
        return loss

    def _clip_grad_norm(self, model):
        if self.exporting is not None:
            self.exporting.gradients()
        return super()._clip_grad_norm(model)

    def _get_grad_norm(self, model, grad_norm=None):
        if self.exporting is not None and grad_norm is None:
            self.exporting.gradients()  # nothing is clipped
        norm = super()._get_grad_norm(model, grad_norm)
        if self.exporting is not None:
            self.exporting.norm(norm)
        return norm
