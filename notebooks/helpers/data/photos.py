"""Photos of a folder, one folder for each class, as small squares: uint8 arrays."""

import numpy as np
from PIL import Image, ImageCms, ImageOps


def eight_bits(photo):
    """A photo that PIL has opened, upright; deeper ones are scaled by their type."""
    tags = getattr(photo, "tag_v2", {})  # of TIFF; others have 16 bits
    bits, signed = np.max(tags.get(258, 16)), np.max(tags.get(339, 1)) == 2
    upright = ImageOps.exif_transpose(photo)
    if upright.mode[0] not in "FI":
        return upright
    values = np.asarray(upright)
    if upright.mode == "F":
        if not (values.min() >= 0 and values.max() <= 1):
            got = f"{values.min():g} to {values.max():g}"
            raise ValueError(f"expected floats from 0 to 1, got {got}")
        values = (255 * values).round()
    else:
        values = values.view(np.uint32) if bits == 32 and not signed else values
        values = values >> (bits - 8 - signed)
    return Image.fromarray(np.clip(values, 0, 255).astype(np.uint8))


def square(photo):
    """The middle square of a photo that PIL has opened: uint8 ``32 32 3``."""
    photo = eight_bits(photo)
    if photo.mode == "LAB":
        profiles = [ImageCms.createProfile(name) for name in ("LAB", "sRGB")]
        photo = ImageCms.profileToProfile(photo, *profiles, outputMode="RGB")
    if photo.has_transparency_data:  # on white paper
        photo = photo.convert("RGBA")
        paper = Image.new("RGBA", photo.size, "white")
        photo = Image.alpha_composite(paper, photo)
    return np.asarray(ImageOps.fit(photo.convert("RGB"), (32, 32)))


def read_folder(folder):
    """Photos of ``folder/CLASS/``: images, labels, classes, and what is left out."""
    found, left = [], []
    for path in sorted(folder.glob("*/**/*")):
        parts = path.relative_to(folder).parts
        hidden = any(part[0] in "._@$#" for part in parts[:-1])  # of an archive, …
        if hidden or parts[-1][0] == "." or path.is_dir():
            continue
        try:
            with Image.open(path) as photo:
                found.append((square(photo), parts[0]))
        except (OSError, ValueError, SyntaxError) as error:  # Pillow has all three
            left.append(f"left out: {path}: {error}")
    classes, labels = np.unique([x for _, x in found], return_inverse=True)
    others = [x for x in folder.iterdir() if x.is_dir() and x.name not in classes]
    left += [f"left out: {path}" for path in sorted(others)]
    images = np.array([x for x, _ in found])
    return images, labels.astype(np.int32), classes.tolist(), left


def read_folders(source):
    """One part of photos, or ``train`` and ``test``, as pairs; classes; left out."""
    inside = {path.name.lower(): path for path in source.iterdir() if path.is_dir()}
    split = {"train", "test", "val", "valid", "validation"} & inside.keys()
    if split not in (set(), {"train", "test"}):
        raise ValueError(f"expected train and test, or classes, got {sorted(inside)}")
    folders = [inside["train"], inside["test"]] if split else [source]
    parts = [read_folder(folder) for folder in folders]
    names, left = [part[2] for part in parts], [x for part in parts for x in part[3]]
    if len(names[0]) < 2 or names[0] != names[-1]:
        raise ValueError(f"expected the same two or more classes, got {names}")
    return [part[:2] for part in parts], names[0], left
