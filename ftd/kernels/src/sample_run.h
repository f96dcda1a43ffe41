// Sampling and logprobs of one row of logits; _sample_cy and _logprobs_cy include this.
//
// The vocabulary is never sorted: block maxima bound the k-th largest logit from below, so one pass and a look into
// the few blocks that reach the bound find the k best. Nucleus links select growing prefixes.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sample.h"

#define FTD_BODY "sample.inl"
#include "each_isa.h"
#undef FTD_BODY

namespace ftd {

inline const SampleKernels* sample_select(int32_t isa) { return &FTD_SELECT(isa, sample_kernels); }

struct Candidate {
    float logit;
    int32_t id;
    double p;    // weight or probability in the link at work
    double key;  // typical_p's distance from the entropy
};

inline bool more_probable(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

inline bool more_typical(const Candidate& a, const Candidate& b) {
    return a.key < b.key || (a.key == b.key && more_probable(a, b));
}

// Memory of the chain, kept between calls; one thread at a time.
class SampleChain {
public:
    // Returns the id, or -1 with *largest set to the largest logit (NaN if any is NaN) when that is not finite.
    int32_t sample(const SampleKernels* kernels, const float* logits, int32_t count, const SampleOptions& options,
                   const int32_t* recent, int64_t num_recent, double uniform, float* largest) {
        kernels_ = kernels;
        const float* x = num_recent ? penalise(logits, count, options, recent, num_recent) : logits;
        *largest = scan(x, count);
        if (!std::isfinite(*largest)) return -1;
        if (options.temperature <= 0.0) return first_of(x, count, *largest);
        const bool narrowed = options.top_k > 0 && options.top_k < count;
        if (!narrowed && options.typical_p >= 1.0 && options.top_p >= 1.0 && options.min_p <= 0.0)
            return draw_from_all(x, count, options.temperature, uniform, *largest);
        best(x, count, narrowed ? options.top_k : count);
        if (options.typical_p < 1.0) keep_typical(options.typical_p);
        if (options.top_p < 1.0) keep_nucleus(options.top_p);
        if (options.min_p > 0.0) keep_probable(options.min_p);
        return draw(options.temperature, uniform);
    }

    // Fills candidates() with the num_top most probable ids in order, key = logprob. Returns the logprob of token.
    double logprobs(const SampleKernels* kernels, const float* logits, int32_t count, int32_t token, int32_t num_top,
                    float* largest) {
        kernels_ = kernels;
        candidates_.clear();
        *largest = scan(logits, count);
        if (!std::isfinite(*largest)) return 0.0;
        floats_.assign(logits, logits + count);
        const double total = static_cast<double>(*largest) +
                             std::log(kernels_->exponentials(floats_.data(), count, *largest, 1.0f));
        if (num_top > 0) best(logits, count, std::min(num_top, count));
        std::sort(candidates_.begin(), candidates_.end(), more_probable);
        for (Candidate& c : candidates_) c.key = static_cast<double>(c.logit) - total;
        return static_cast<double>(logits[token]) - total;
    }

    std::vector<Candidate>& candidates() { return candidates_; }

private:
    static constexpr size_t FEW = 1024;  // below this exponentials are taken in double

    const float* penalise(const float* logits, int32_t count, const SampleOptions& options, const int32_t* recent,
                          int64_t num_recent) {
        penalised_.assign(logits, logits + count);
        ids_.assign(recent, recent + num_recent);
        std::sort(ids_.begin(), ids_.end());
        for (size_t i = 0; i < ids_.size();) {
            size_t end = i;
            while (end < ids_.size() && ids_[end] == ids_[i]) ++end;
            const double x = penalised_[ids_[i]];
            const double scaled = x > 0.0 ? x / options.repeat_penalty : x * options.repeat_penalty;
            penalised_[ids_[i]] = static_cast<float>(scaled - static_cast<double>(end - i) * options.frequency_penalty -
                                                     options.presence_penalty);
            i = end;
        }
        return penalised_.data();
    }

    float scan(const float* x, int32_t count) {
        maxima_.resize((count + SAMPLE_BLOCK - 1) / SAMPLE_BLOCK);
        if (kernels_->block_maxima(x, count, maxima_.data())) return std::numeric_limits<float>::quiet_NaN();
        return *std::max_element(maxima_.begin(), maxima_.end());
    }

    int32_t first_of(const float* x, int32_t count, float value) const {
        const auto block = std::find(maxima_.begin(), maxima_.end(), value) - maxima_.begin();
        return static_cast<int32_t>(std::find(x + block * SAMPLE_BLOCK, x + count, value) - x);
    }

    // The k best as candidates, in any order.
    void best(const float* x, int32_t count, int32_t k) {
        float bound = -std::numeric_limits<float>::infinity();
        if (k <= static_cast<int32_t>(maxima_.size())) {
            floats_ = maxima_;
            std::nth_element(floats_.begin(), floats_.begin() + (k - 1), floats_.end(), std::greater<float>());
            bound = floats_[k - 1];
        }
        candidates_.clear();
        for (int32_t block = 0; block < static_cast<int32_t>(maxima_.size()); ++block) {
            if (maxima_[block] < bound) continue;
            const int32_t end = std::min(count, (block + 1) * SAMPLE_BLOCK);
            for (int32_t id = block * SAMPLE_BLOCK; id < end; ++id)
                if (x[id] >= bound) candidates_.push_back({x[id], id, 0.0, 0.0});
        }
        if (candidates_.size() <= static_cast<size_t>(k)) return;
        std::nth_element(candidates_.begin(), candidates_.begin() + (k - 1), candidates_.end(), more_probable);
        candidates_.resize(k);
    }

    // p of each candidate = exp((logit - largest) / temperature); returns their sum.
    double weigh(double temperature) {
        float top = -std::numeric_limits<float>::infinity();
        for (const Candidate& c : candidates_) top = std::max(top, c.logit);
        double total = 0.0;
        if (candidates_.size() <= FEW) {
            for (Candidate& c : candidates_) {
                c.p = std::exp((static_cast<double>(c.logit) - top) / temperature);
                total += c.p;
            }
            return total;
        }
        floats_.clear();
        for (const Candidate& c : candidates_) floats_.push_back(c.logit);
        total = kernels_->exponentials(floats_.data(), static_cast<int32_t>(floats_.size()), top, inverse(temperature));
        for (size_t i = 0; i < floats_.size(); ++i) candidates_[i].p = floats_[i];
        return total;
    }

    // Finite, so that the largest logit keeps weight exp(0 * inverse) = 1.
    static float inverse(double temperature) {
        return static_cast<float>(std::min(1.0 / temperature, static_cast<double>(std::numeric_limits<float>::max())));
    }

    // Keeps the shortest prefix, in the order of `before`, whose p reaches (or, if strict, exceeds) limit * total.
    template <class Before>
    void keep_prefix(Before before, double limit, double total, bool strict) {
        double sum = 0.0;
        for (size_t done = 0, step = 256; done < candidates_.size(); step *= 8) {
            const auto begin = candidates_.begin() + static_cast<std::ptrdiff_t>(done);
            const size_t upto = std::min(candidates_.size(), done + step);
            const auto middle = candidates_.begin() + static_cast<std::ptrdiff_t>(upto);
            if (middle != candidates_.end()) std::nth_element(begin, middle, candidates_.end(), before);
            std::sort(begin, middle, before);
            for (; done < upto; ++done) {
                sum += candidates_[done].p / total;
                if (strict ? sum > limit : sum >= limit) {
                    candidates_.resize(done + 1);
                    return;
                }
            }
        }
    }

    void keep_typical(double limit) {
        const double total = weigh(1.0);
        double entropy = 0.0;
        for (const Candidate& c : candidates_)
            if (c.p > 0.0) entropy -= c.p / total * std::log(c.p / total);
        for (Candidate& c : candidates_) c.key = std::abs(-std::log(c.p / total) - entropy);
        keep_prefix(more_typical, limit, total, true);
    }

    void keep_nucleus(double limit) {
        const double total = weigh(1.0);
        keep_prefix(more_probable, limit, total, false);
    }

    void keep_probable(double min_p) {
        const Candidate top = *std::min_element(candidates_.begin(), candidates_.end(), more_probable);
        const double bound = static_cast<double>(top.logit) + std::log(min_p);
        const auto end = std::remove_if(candidates_.begin(), candidates_.end(), [&](const Candidate& c) {
            return static_cast<double>(c.logit) < bound && c.id != top.id;
        });
        candidates_.erase(end, candidates_.end());
    }

    int32_t draw(double temperature, double uniform) {
        const double target = uniform * weigh(temperature);
        std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
        double sum = 0.0;
        int32_t last = -1;
        for (const Candidate& c : candidates_) {
            sum += c.p;
            if (c.p > 0.0) last = c.id;
            if (sum > target) return c.id;
        }
        return last;  // the product rounded up to the whole sum
    }

    int32_t draw_from_all(const float* x, int32_t count, double temperature, double uniform, float largest) {
        floats_.assign(x, x + count);
        const double target = uniform * kernels_->exponentials(floats_.data(), count, largest, inverse(temperature));
        double sum = 0.0;
        int32_t last = -1;
        for (int32_t id = 0; id < count; ++id) {
            sum += static_cast<double>(floats_[id]);
            if (floats_[id] > 0.0f) last = id;
            if (sum > target) return id;
        }
        return last;
    }

    const SampleKernels* kernels_ = nullptr;
    std::vector<Candidate> candidates_;
    std::vector<float> penalised_, maxima_, floats_;
    std::vector<int32_t> ids_;
};

}  // namespace ftd
