"""fairseq plug-ins for tiny sequence models: what ``--user-dir`` loads.

Importing this package registers its architectures with fairseq; twice is harmless.
"""

from fairseq_plugins import compat

compat.allow_checkpoint_classes()

import fairseq_plugins.criterions.self_critical  # noqa: E402
import fairseq_plugins.models.share_transformer  # noqa: E402
import fairseq_plugins.tasks.captioning  # noqa: E402, F401
