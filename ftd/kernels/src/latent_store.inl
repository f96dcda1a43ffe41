// latent_store; a token is one part's work, its place is one run of items.

template <class Item>
static void store_latent(const float* from, Item* to, int channels) {
    int c = 0;
    for (; c + W <= channels; c += W) store(to + c, load(from + c));
    if (c < channels) store_part(to + c, load_part(from + c, channels - c), channels - c);
}

static void latent_store_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const LatentStoreArgs*>(args);
    int64_t token, end;
    share(step->num_tokens, 1, thread, num_threads, &token, &end);
    for (; token < end; ++token) {
        const float* from = a->x + token * a->channels;
        const int64_t at = static_cast<int64_t>(step->kv_index[token]) * a->channels;
        if (a->page_type == PAGES_F16)
            store_latent(from, static_cast<Half*>(a->pages) + at, a->channels);
        else
            store_latent(from, static_cast<float*>(a->pages) + at, a->channels);
    }
}
