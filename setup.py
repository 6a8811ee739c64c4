"""Packaging. Exact pins for a working environment are in requirements.txt; here are the bounds that must hold."""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = (HERE / "ppdiffusers_tome" / "version.py").read_text().split('"')[1]

setup(
    name="ppdiffusers-tome",
    version=VERSION,
    description="Token Merging for diffusion models on PaddlePaddle: faster, less memory, nearly the same picture",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.10,<3.13",
    packages=find_packages(include=["ppdiffusers_tome", "ppdiffusers_tome.*"]),
    package_data={
        "ppdiffusers_tome": ["py.typed"],
        "ppdiffusers_tome.settings.presets": ["*.json"],
        "ppdiffusers_tome.tools.bench.gpu": ["*.json"],
        "ppdiffusers_tome.tools.evaluation": ["*.jsonl"],
        "ppdiffusers_tome.tools.bundled": ["model/**/*", "controlnet/**/*", "dit/**/*"],
    },
    install_requires=[
        "ppdiffusers>=0.24.1",  # no upper bound: the newest are installed from source
        "paddlenlp>=2.7.2,<=2.8.1",  # 2.7.2 is the one that ppdiffusers 0.24.1 insists on
        "numpy>=1.24,<2",
        "scikit-image>=0.22,<0.25",
        "flip-evaluator>=1.6,<2",
        "pillow>=10.1",  # ImageFont.load_default of any size
        "matplotlib>=3.8,<4",
        "rich>=13.8,<16",
        "filelock>=3.32",  # earlier ones cannot be told to do without where a file system has no locks
        "tqdm",
        # Bounds that ppdiffusers and paddlenlp need and do not set: newer ones fail on import.
        "aistudio-sdk<0.3",
        "datasets<3.2",
        "huggingface-hub>=0.22,<0.26",
        "opencv-python<4.11",
        "pip",
        "pyarrow<19",
        "safetensors>=0.5,<0.7",
        "setuptools<70",
    ],
    extras_require={
        "cpu": ["paddlepaddle>=2.6.2,<=3.3.1"],
        "gpu": ["paddlepaddle-gpu>=2.6.2,<=3.3.1"],
        "onnx": ["paddle2onnx>=1.3,<2", "onnxruntime>=1.17,<1.20"],  # with Paddle 2.6; for Paddle 3 nothing converts
    },
    entry_points={"console_scripts": ["ppdiffusers-tome=ppdiffusers_tome.__main__:program"]},
)
