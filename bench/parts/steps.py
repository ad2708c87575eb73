"""End to end: a training step (forward, backward, AdamW) of GPT-2 small and medium and of BERT-large in Hugging Face
transformers, and forward and backward of ViT-base in timm, with random weights: time and memory with eager attention, with
SDPA as PyTorch chooses, with its cuDNN backend, and with flashkiln; and a step in which attention is left out, which no
attention can be faster than. The weights are float32, the work is bfloat16 by autocast, as GPT-2 is trained. All of one
case take turns on the same model, so that weights, data and allocator are the same. Results: steps.csv
"""
import contextlib

from parts.session import Call

NAMES = ("eager", "sdpa", "sdpa-cudnn", "flashkiln", "no-attention")
GPT2 = {"gpt2-small": (12, 12, 768, 16384), "gpt2-medium": (24, 16, 1024, 8192)}  # layers, heads, width, tokens of a step
BERT = (24, 16, 1024)
VIT = {197: 128, 785: 32, 3137: 8}  # tokens, of images of 14, 28 and 56 patches a side: batch


class Model:
    """A model, and a case of it: what its columns say, and step() once an implementation is switched to."""

    def __init__(self, session):
        self.session, self.torch, self.row = session, session.torch, {}

    def autocast(self):
        return self.torch.autocast(self.session.device, self.torch.bfloat16, enabled=self.session.cuda)

    def generator(self):
        return self.torch.Generator(self.session.device).manual_seed(0)

    def forget(self):
        """What a step that failed may have left."""
        self.loss = None
        self.model.zero_grad()
        self.session.free()

    @contextlib.contextmanager
    def using(self, name):
        from torch.nn.attention import SDPBackend, sdpa_kernel
        before = self.switch("sdpa" if name == "sdpa-cudnn" else name)
        try:
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if name == "sdpa-cudnn" else contextlib.nullcontext():
                yield
        finally:
            before()


def no_attention(module, query, key, value, attention_mask, **options):
    """What is left of a step when attention takes no time: the values themselves."""
    return value.transpose(1, 2).contiguous(), None


class HuggingFace(Model):
    """Of transformers: its attention is what its configuration says at the call."""

    def __init__(self, session, kind, config):
        super().__init__(session)
        import transformers
        import flashkiln.hf
        transformers.utils.logging.set_verbosity_error()
        flashkiln.hf.register()
        transformers.AttentionInterface.register("no-attention", no_attention)
        transformers.AttentionMaskInterface.register("no-attention", lambda **asked: None)
        self.torch.manual_seed(0)
        with self.torch.device(session.device):
            self.model = getattr(transformers, kind)._from_config(config, attn_implementation="eager").train()
        self.inner = {}
        for name in ("flashkiln", "no-attention", "sdpa", "eager"):
            self.model.set_attn_implementation(name)
            self.inner[name] = self.model.config._attn_implementation
        self.optimizer = self.torch.optim.AdamW(self.model.parameters(), 1e-4, fused=session.cuda)

    def case(self, label, seqlen, batch, dropout, inputs):
        self.row = {"model": label, "seqlen": seqlen, "batch": batch, "dropout": dropout}
        self.inputs = inputs
        for module in self.model.modules():
            if isinstance(module, self.torch.nn.Dropout):
                module.p = dropout
        return self

    def switch(self, name):
        self.model.config._attn_implementation = self.inner[name]
        return lambda: None

    def step(self):
        with self.autocast():
            self.loss = self.model(**self.inputs).loss
        self.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Timm(Model):
    """A vision transformer: its own fused_attn says eager or scaled_dot_product_attention, which flashkiln takes over."""

    def __init__(self, session, seqlen, batch, **changes):
        super().__init__(session)
        import timm
        self.row = {"model": "vit-base", "seqlen": seqlen, "batch": batch, "dropout": 0.0}
        side = round((seqlen - 1) ** 0.5) * 16
        self.torch.manual_seed(0)
        with self.torch.device(session.device):
            self.model = timm.create_model("vit_base_patch16_224", pretrained=False, img_size=side, **changes).train()
        self.images = self.torch.randn(batch, 3, side, side, device=session.device, generator=self.generator())

    def switch(self, name):
        import flashkiln
        for module in self.model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = name != "eager"
        if name == "flashkiln":
            flashkiln.enable_sdpa(cpu=not self.session.cuda)
            return flashkiln.disable_sdpa
        return lambda: None

    def step(self):
        with self.autocast():
            self.loss = self.model(self.images).float().square().mean()
        self.loss.backward()
        self.model.zero_grad()


# ---- the cases ----

def gpt2(session, label, lengths, dropouts):
    """One model for all of its cases."""
    import transformers
    layers, heads, width, tokens = GPT2[label] if session.cuda else (1, 2, 32, 16)
    vocabulary = 50257 if session.cuda else 64
    config = transformers.GPT2Config(vocab_size=vocabulary, n_layer=layers, n_head=heads, n_embd=width,
                                     n_positions=max(lengths), use_cache=False, bos_token_id=0, eos_token_id=0)
    model = HuggingFace(session, "GPT2LMHeadModel", config)
    for seqlen in lengths:
        batch = max(1, tokens // seqlen)
        ids = session.torch.randint(vocabulary, (batch, seqlen), device=session.device, generator=model.generator())
        for dropout in dropouts:
            yield model.case(label, seqlen, batch, dropout, {"input_ids": ids, "labels": ids})


def bert(session, seqlen, batch):
    """Lengths from a half to all of seqlen, padded on the right."""
    import transformers
    torch, (layers, heads, width) = session.torch, BERT if session.cuda else (1, 2, 32)
    config = transformers.BertConfig(num_hidden_layers=layers, num_attention_heads=heads, hidden_size=width,
                                     intermediate_size=4 * width, max_position_embeddings=seqlen)
    if not session.cuda:
        config.vocab_size = 64
    model = HuggingFace(session, "BertForMaskedLM", config)
    ids = torch.randint(config.vocab_size, (batch, seqlen), device=session.device, generator=model.generator())
    lengths = torch.linspace(seqlen // 2, seqlen, batch, device=session.device).long()
    mask = (torch.arange(seqlen, device=session.device)[None] < lengths[:, None]).long()
    inputs = {"input_ids": ids, "labels": ids.masked_fill(mask == 0, -100), "attention_mask": mask}
    yield model.case("bert-large", seqlen, batch, 0.1, inputs)


def vit(session, seqlen, batch, **changes):
    yield Timm(session, seqlen, batch, **changes)


def families(session):
    """[(label, models at their cases; one is alive at a time)]"""
    if not session.cuda:
        return [("gpt2-small", gpt2(session, "gpt2-small", [16], [0.1])), ("bert-large", bert(session, 16, 2)),
                ("vit-base", vit(session, 5, 1, embed_dim=32, num_heads=2, depth=1))]
    quick = session.args.quick
    lengths, dropouts = session.args.lengths or ((4096,) if quick else (1024, 2048, 4096)), (0.1,) if quick else (0.1, 0.0)
    return [*((label, gpt2(session, label, lengths, dropouts)) for label in list(GPT2)[:1 if quick else 2]),
            ("bert-large", bert(session, 512, 32)),
            *((f"vit-base {n}", vit(session, n, VIT[n])) for n in list(VIT)[2 if quick else 0:])]


def run(session):
    for _, models in session.units(families(session), lambda family: family[0]):
        for model in models:
            time_model(session, model)
            del model
            session.free()


def time_model(session, model):
    ready, missing, more = [], {}, {}
    for name in NAMES:
        if name == "sdpa-cudnn" and not session.cuda or name == "no-attention" and isinstance(model, Timm):
            continue
        call = Call(name, model.step, lambda name=name: model.using(name))
        with session.surviving("{model} {seqlen}".format(**model.row), name, missing):
            session.once(call)  # compiles
            more[name] = {"peak_mib": session.peak(call), "loss": f"{model.loss.item():.4f}"}
            ready.append(call)
        model.forget()
    times = session.time(ready, 1.5 if session.args.quick else 2.5)
    for name, figures in times.items():
        tokens = model.row["batch"] * model.row["seqlen"]
        more[name]["tokens_per_s"] = round(tokens / float(figures["median_us"]) * 1e6)
    rows = session.rows(model.row, times, more, missing)
    session.write("steps", rows)
    session.say("{model} {seqlen} x {batch} dropout {dropout}: ".format(**model.row) + ", ".join(
        f"{r['name']} {float(r['median_us']) / 1e3:.1f} ms {r['peak_mib']} MiB" if not r["note"] else
        f"{r['name']} {r['note']}" for r in rows))
