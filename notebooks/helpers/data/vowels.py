"""Japanese Vowels: nine speakers say two vowels; by frame, twelve numbers of the sound.

Source: Kudo et al. 1999, https://doi.org/10.24432/C5NS47, licence CC BY 4.0; here
rounded to four decimals. A frame has the LPC cepstrum of 25.6 ms, one every 6.4 ms.
"""

from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("japanese_vowels.npz")
N_TRAIN, LONGEST = 270, 29  # utterances for training, of 640; frames


def load():
    """Training and test part: frames ``n s 12``, which are real ``n s``, speakers ``n``.

    Float32 frames, padded with zeros to 29; int32 speakers; the test was recorded later.
    """
    with np.load(FILE) as file:
        real = np.arange(LONGEST) < file["lengths"][:, None]  # n s
        frames = np.zeros((*real.shape, file["frames"].shape[1]), np.float32)
        frames[real] = file["frames"] / 1e4
        arrays = frames, real, file["speakers"].astype(np.int32)
    first, rest = slice(N_TRAIN), slice(N_TRAIN, None)
    return {"train": [x[first] for x in arrays], "test": [x[rest] for x in arrays]}
