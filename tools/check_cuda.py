"""JAX's CUDA build and PyTorch in one process: same CUDA libraries, and both compute.

Without a GPU both compute on the CPU. JAX is told so, because its own check of the
versions asks CUPTI, which crashes where there is no driver.
"""

import os
import shutil
import warnings
from importlib.metadata import requires, version

from packaging.requirements import Requirement

NO_GPU = shutil.which("nvidia-smi") is None
if NO_GPU:
    os.environ["JAX_PLATFORMS"] = "cpu"
warnings.simplefilter("error")


def main():
    """Raise an error if anything of the two does not fit together."""
    for package in ("torch", "jax-cuda13-plugin"):
        for line in requires(package):
            wanted = Requirement(line)
            if wanted.name.startswith("nvidia-") and (
                wanted.marker is None
                or any(wanted.marker.evaluate({"extra": e}) for e in ("", "with-cuda"))
            ):
                found = version(wanted.name)
                assert wanted.specifier.contains(found), f"{line}, but found {found}"

    import jax
    import jax.numpy as jnp
    import torch
    from jax_plugins import xla_cuda13

    xla_cuda13._load_nvidia_libraries()
    xla_cuda13._import_extensions()
    cuda = xla_cuda13.cuda_versions
    for name in ("cuda_runtime", "cudnn", "cufft"):
        built = getattr(cuda, f"{name}_build_version")()
        found = getattr(cuda, f"{name}_get_version")()
        print(f"{name:<13} built for {built}, found {found}")
        assert found >= built, f"{name} is older than JAX was built for"
    assert float(jnp.ones(3) @ jnp.ones(3)) == float(torch.ones(3) @ torch.ones(3)) == 3
    print(f"jax {jax.__version__} on {jax.devices()[0]}")
    print(f"torch {torch.__version__}, CUDA {torch.version.cuda}")
    expected = "cpu" if NO_GPU else "gpu"
    assert jax.devices()[0].platform == expected, (
        f"{jax.devices()} but {expected} expected"
    )


if __name__ == "__main__":
    main()
