"""Linear recurrences over a matrix state: `S_t = decay(S_{t-1}) + k_t v_t^T`."""
