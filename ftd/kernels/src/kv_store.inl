// kv_store. A part takes whole heads first: neighbouring tokens share the cache lines of a key page.

template <class Item>
static void store_token(const KvStoreArgs* a, int64_t group, int64_t token, int64_t index, int32_t page_size) {
    const int channels = a->channels;
    const int64_t page = index / page_size, offset = index % page_size;
    const float* k = a->k + (token * a->groups + group) * channels;
    const float* v = a->v + (token * a->groups + group) * channels;
    Item* keys = static_cast<Item*>(a->k_pages) + (page * a->groups + group) * channels * page_size + offset;
    Item* values = static_cast<Item*>(a->v_pages) + ((page * a->groups + group) * page_size + offset) * channels;
    int c = 0;
    for (; c + W <= channels; c += W) {
        Item column[W];
        store(column, load(k + c));
        for (int j = 0; j < W; ++j) keys[static_cast<int64_t>(c + j) * page_size] = column[j];
        store(values + c, load(v + c));
    }
    if (c < channels) {
        Item column[W];
        const int rest = channels - c;
        store(column, load_part(k + c, rest));
        for (int j = 0; j < rest; ++j) keys[static_cast<int64_t>(c + j) * page_size] = column[j];
        store_part(values + c, load_part(v + c, rest), rest);
    }
}

static void kv_store_op(const void* args, const Step* step, int32_t thread, int32_t num_threads) noexcept {
    const auto* a = static_cast<const KvStoreArgs*>(args);
    const int64_t tokens = step->num_tokens;
    int64_t item, end;
    share(tokens * a->groups, 1, thread, num_threads, &item, &end);
    for (; item < end; ++item) {
        const int64_t group = item / tokens, token = item % tokens;
        const int64_t index = step->kv_index[token];
        if (a->page_type == PAGES_F16)
            store_token<Half>(a, group, token, index, step->page_size);
        else
            store_token<float>(a, group, token, index, step->page_size);
    }
}
