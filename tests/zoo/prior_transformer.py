"""PriorTransformer: the unCLIP, Kandinsky and Shap-E priors turn a text embedding into an image's."""

from zoo.specimen import TEXT_DIM, TEXT_TOKENS, Specimen

SPECIMEN = Specimen(
    "Priors of unCLIP, Kandinsky and Shap-E", "PriorTransformer",
    dict(
        num_attention_heads=2, attention_head_dim=8, num_layers=2, embedding_dim=TEXT_DIM,
        num_embeddings=TEXT_TOKENS, additional_embeddings=4,
    ),
    # There is no image, and so no height and width.
    lambda model, inputs: model(
        inputs.normal(TEXT_DIM, seed=0), timestep=inputs.timestep, proj_embedding=inputs.normal(TEXT_DIM, seed=1),
        encoder_hidden_states=inputs.text(),
    ),
)  # fmt: skip
