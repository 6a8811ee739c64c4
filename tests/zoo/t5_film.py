"""T5FilmDecoder: the decoder of Spectrogram Diffusion, on frames of sound."""

from zoo.specimen import Specimen

BANDS, SOUND_FRAMES, WIDTH = 6, 8, 16

SPECIMEN = Specimen(
    "Spectrogram Diffusion", "T5FilmDecoder",
    dict(input_dims=BANDS, targets_length=SOUND_FRAMES, d_model=WIDTH, num_layers=2, num_heads=2, d_kv=8, d_ff=16),
    # There is no image, and so no height and width. Time is thousandths of the noise left.
    lambda model, inputs: model(
        [(inputs.normal(5, WIDTH, seed=2), inputs.rows([1] * 5))], inputs.normal(SOUND_FRAMES, BANDS, seed=0),
        inputs.timesteps / 1000,
    ),
)  # fmt: skip
