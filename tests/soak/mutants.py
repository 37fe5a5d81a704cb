"""Defects made on purpose, one at a time, to see that the soak finds them. Applied in the training processes alone."""

from trl_prorl import ProRLTrainer
from trl_prorl.extras.dynamic_sampling import SignalWatch
from trl_prorl.extras.growth import Growth
from trl_prorl.reference import SnapshotReference
from trl_prorl.resets import Resets
from trl_prorl.run import folder as on_disk
from trl_prorl.run import record as recorder
from trl_prorl.run.folder import RunFolder
from trl_prorl.run.record import Means
from trl_prorl.watch import Alarm


def buffer():
    """What was generated and not yet trained on is not read back."""
    load = ProRLTrainer._load_state

    def forgetful(self, folder, configured):
        load(self, folder, configured)
        self._buffered_inputs = None

    ProRLTrainer._load_state = forgetful


def reference():
    """A full reference starts from the base again."""
    SnapshotReference.load = lambda self, folder: None


def stall():
    """The best evaluation, and how many came after it, are forgotten."""
    Alarm.load_state_dict = lambda self, state, changed: None


def rewarmup():
    """The learning rate's warm-up after a reset is forgotten."""
    load = Resets.load_state_dict

    def forgetful(self, state, changed):
        load(self, state, changed)
        if self.rewarmup is not None:
            self.rewarmup.updates = None

    Resets.load_state_dict = forgetful


def after_loading(forget):
    """What `forget` makes of the trainer, once optimizer and schedule are loaded."""
    load = ProRLTrainer._load_optimizer_and_scheduler

    def forgetful(self, folder):
        begin = self.lr_scheduler.state_dict()
        load(self, folder)
        forget(self, begin)

    ProRLTrainer._load_optimizer_and_scheduler = forgetful


def schedule():
    """The learning-rate schedule begins anew."""
    after_loading(lambda trainer, begin: trainer.lr_scheduler.load_state_dict(begin))


def optimizer():
    """Adam's second moments are cleared."""
    after_loading(lambda trainer, begin: [each["exp_avg_sq"].zero_() for each in trainer.optimizer.state.values()])


def epoch():
    """The order of the first epoch is replayed."""
    sampler = ProRLTrainer._get_train_sampler

    def forgetful(self, dataset=None):
        if self._resume is not None:
            self._resume.epochs = 0
        return sampler(self, dataset)

    ProRLTrainer._get_train_sampler = forgetful


def record():
    """A resume writes on as the attempt before it, so that rows that are computed again stand in the log twice."""
    recorder.next_attempt = lambda folder: 0


def hashes():
    """Whatever is called a checkpoint is taken for whole."""
    on_disk.unusable_reason = lambda folder, content=True: None


def future():
    """A run that goes back to an older checkpoint leaves the newer ones to the next resume."""
    RunFolder.abandon_newer = lambda *given: {}


def growth():
    """Growth that waits for the next generation is forgotten."""
    Growth.load_state_dict = lambda self, state, changed: None


def signal():
    """How many batches had no signal is forgotten."""
    SignalWatch.load_state_dict = lambda self, state, changed: None


def means():
    """What the values of the next log are means of is forgotten."""
    Means.load_state_dict = lambda self, state, changed: None


OF = (buffer, reference, stall, rewarmup, schedule, optimizer, epoch, record, hashes, future, growth, signal, means)
MUTANTS = {defect.__name__: defect for defect in OF}
