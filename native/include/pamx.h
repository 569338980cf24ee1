/* The C interface of pamx's native library: the only header that Python sees.
 *
 * cffi reads this file as it is, so it holds declarations and comments and no preprocessor
 * line. C and C++ sources include <stddef.h> and <stdint.h> before it.
 *
 * Every function that can fail returns a pamx_status; pamx_last_error() then says why, in one
 * sentence, for the calling thread. No function keeps a pointer that it was given.
 */

enum pamx_status {
  PAMX_OK = 0,
  PAMX_INVALID_ARGUMENT = 1, /* the caller broke the contract: shape, dtype, range, null */
  PAMX_UNSUPPORTED = 2,      /* well formed, but this library has no kernel for it */
  PAMX_FAILED = 3            /* MLX or the operating system refused */
};

/* Message of the last failed call on this thread; never null, valid until the next failure. */
const char* pamx_last_error(void);

/* Version of pamx that this library was built as, for example "0.1.0". */
const char* pamx_version(void);
/* Digest of the native sources that this library was built from, in hexadecimal. */
const char* pamx_build_hash(void);
/* Version of MLX whose headers this library was compiled against. */
const char* pamx_mlx_compiled(void);
/* Version of the libmlx that this process loaded. */
const char* pamx_mlx_loaded(void);

/* ---- CPU ------------------------------------------------------------------------------ */

/* Instruction set that the kernels run with on this machine: "avx512", "avx2", "neon" or
 * "portable". */
const char* pamx_cpu_isa(void);
/* Threads that a kernel may use, the caller's included (at least 1; default: all CPUs of this
 * process). Results do not depend on it. */
int pamx_set_num_threads(int32_t num_threads);
int32_t pamx_num_threads(void);
/* Calls item(context, i) for i in [0, count), each once, on those threads, and returns when all
 * have ended. Does nothing for a null item. */
void pamx_parallel(int64_t count, void (*item)(void* context, int64_t i), void* context);

/* ---- The bridge to Python's mlx.core.array ---------------------------------------------- */

/* id() of a Python mlx.core.array. The caller keeps the object alive during the call. */
typedef uintptr_t pamx_object;

/* Tells the library how large a Python object's header and an mlx.core.array are, in bytes
 * (object.__basicsize__ and mlx.core.array.__basicsize__). Call before any other bridge call. */
int pamx_bridge_configure(int32_t object_size, int32_t array_size);
/* Checks, without trusting any pointer it has not verified, that `object` holds an mlx array
 * with this data address, shape and item size: a wrong instance layout fails here instead of
 * reading stray memory later. */
int pamx_bridge_probe(pamx_object object, uintptr_t data, int32_t ndim, const int32_t* shape,
                      int32_t itemsize);

/* Turns the placeholder `out` into an array of `shape` whose memory nobody has touched: the system
 * provides a page of it when it is first written. For block pools, which are large, are reserved
 * whole and fill slowly. `dtype_of` is any array of the wanted dtype. */
int pamx_empty(const int32_t* shape, int32_t ndim, pamx_object dtype_of, pamx_object out);

/* ---- Packed batches --------------------------------------------------------------------- */

/* The sequences of one step, packed without padding. Sequence s brings the query tokens
 * query_starts[s] .. query_starts[s + 1]; with them it is context_lens[s] tokens long, so its
 * first query token stands at position context_lens[s] - (its number of query tokens). */
typedef struct {
  int32_t num_sequences;
  int32_t num_blocks;          /* blocks in every pool that the block tables point into */
  int32_t block_size;          /* tokens a block: 8, 16 or 32 */
  int32_t max_blocks;          /* row length of block_tables */
  const int32_t* query_starts; /* [num_sequences + 1], from 0, strictly increasing */
  const int32_t* context_lens; /* [num_sequences], tokens, the new ones included */
  const int32_t* block_tables; /* [num_sequences, max_blocks]; entries past a sequence's last
                                  block are not read */
} pamx_batch_desc;

typedef struct pamx_batch pamx_batch;

/* Copies and validates a description. Refuses a block id outside the pool, a context shorter
 * than its query, a table too short for its context, a block that one sequence writes while
 * another sequence's table holds it, and a block that a sequence holds twice. */
int pamx_batch_create(const pamx_batch_desc* desc, pamx_batch** batch);
/* Releases the caller's hold; work already queued keeps its own. Null is allowed. */
void pamx_batch_free(pamx_batch* batch);

/* ---- Copying blocks ------------------------------------------------------------------------- */

/* Queues copies of whole blocks, sources[i] to targets[i] for i in [0, count), in order and in
 * place in both pools. Lazy; the placeholders become the pools to use from then on, as in
 * pamx_paged_attention. */
int pamx_copy_blocks(const int32_t* sources, const int32_t* targets, int32_t count,
                     pamx_object key_pool, pamx_object value_pool, pamx_object key_pool_out,
                     pamx_object value_pool_out);

/* ---- Paged attention ---------------------------------------------------------------------- */

typedef struct {
  float scale;    /* multiplies q.k */
  float softcap;  /* 0: none; else scores become softcap * tanh(score / softcap) */
  int32_t window; /* 0: none; else a query at position p sees positions above p - window */
} pamx_attention_params;

/* Queues one fused operation on MLX's current default stream: write the new key and value rows
 * into the pools in place, then let every query row attend causally to its sequence's pages.
 *
 *   queries     [batch, heads, length, k_dim]     float32, float16 or bfloat16
 *   keys        [batch, kv_heads, length, k_dim]  same dtype, or 0: nothing to write
 *   values      [batch, kv_heads, length, v_dim]  same dtype, or 0 together with keys
 *   key_pool    [num_blocks, block_size, kv_heads, k_dim]  row-contiguous; the same dtype, or a
 *   value_pool  [num_blocks, block_size, kv_heads, v_dim]  16-bit one below float32 rows, which
 *                                                          are rounded as they are written
 *   sinks       [heads] of any floating dtype, or 0: a logit per head that takes part in the
 *               softmax and contributes no value
 *
 * batch x length is the number of packed query tokens, and one of the two is 1. heads is a
 * multiple of kv_heads; k_dim and v_dim are multiples of 8, at most 512.
 *
 * The operation is lazy. On success the Python arrays `out`, `key_pool_out` and
 * `value_pool_out` (placeholders made by the caller) become its results: the attention output
 * [batch, heads, length, v_dim], laid out so that swapping heads and length back costs nothing,
 * and the pools after the write, which share their buffers with the pools that went in. The
 * caller must use the new pools from then on. Accumulation is in float32; a row that sees no
 * key gives zeros. */
int pamx_paged_attention(const pamx_batch* batch, const pamx_attention_params* params,
                         pamx_object queries, pamx_object keys, pamx_object values,
                         pamx_object key_pool, pamx_object value_pool, pamx_object sinks,
                         pamx_object out, pamx_object key_pool_out, pamx_object value_pool_out);

/* ---- The plan of a paged-attention call on the CPU ------------------------------------------ */

typedef struct {
  int32_t heads, kv_heads, k_dim, v_dim;
  int32_t window;     /* 0: none */
  int32_t threads;    /* 0: as many as this process uses */
  int64_t l2_bytes;   /* 0: as this machine has */
  int32_t block_size; /* read if a partition is forced: it must be a multiple */
} pamx_cpu_attention_desc;

typedef struct {
  int32_t partition;      /* tokens that share one softmax; set by geometry and L2 alone */
  int32_t threads;        /* of those offered, how many get work */
  int64_t items;          /* independent pieces of work */
  int64_t few_rows_items; /* those that take keys and values from the pages into registers */
  int64_t folds;          /* groups of rows whose partial results are folded afterwards */
  int64_t work;           /* multiply-adds */
  int64_t scratch_bytes;  /* for each thread */
  int64_t partial_bytes;  /* partial results of the whole call */
  const char* text;       /* the plan in sentences, with a reason against each other path; valid
                             until this thread's next call */
} pamx_cpu_attention_plan;

/* What pamx_paged_attention would do for these sequences (as in pamx_batch_desc). Runs nothing. */
int pamx_plan_cpu_attention(const pamx_cpu_attention_desc* desc, int32_t num_sequences,
                            const int32_t* query_starts, const int32_t* context_lens,
                            pamx_cpu_attention_plan* plan);

/* ---- Dispatches of the Metal shaders ----------------------------------------------------------
 */

enum pamx_dtype { PAMX_FLOAT32 = 0, PAMX_FLOAT16 = 1, PAMX_BFLOAT16 = 2 };

enum pamx_kernel {
  PAMX_KERNEL_PAGED_ATTENTION = 0,
  PAMX_KERNEL_GQA_DECODE = 1,       /* reads a page once for all query heads of a group */
  PAMX_KERNEL_GQA_DECODE_HEADS = 2, /* one simdgroup for each query head */
  PAMX_KERNEL_SPLIT_KV_REDUCE = 3,
  PAMX_KERNEL_PREFILL_TILED = 4,
  PAMX_KERNEL_PREFILL_NAX = 5,
  PAMX_KERNEL_MLA_DECODE = 6,
  PAMX_KERNEL_MLA_PREFILL = 7,
  PAMX_KERNEL_KV_WRITE = 8,
  PAMX_KERNEL_COPY_BLOCKS = 9,
  PAMX_KERNEL_GATHER_BLOCKS = 10
};

/* What a dispatch works on. Fields that a kernel has no use for are not read. */
typedef struct {
  int32_t kernel;     /* pamx_kernel */
  int32_t dtype;      /* pamx_dtype of queries, new rows and output */
  int32_t pool_dtype; /* pamx_dtype of the pools */
  int32_t heads;
  int32_t kv_heads;
  int32_t k_dim; /* MLA: latent and rotary parts together */
  int32_t v_dim; /* MLA: the latent part */
  int32_t block_size;
  int32_t partition;      /* tokens; 0: not split */
  int32_t num_partitions; /* of the longest row */
  int32_t rows;           /* work rows */
  int32_t tokens;         /* kv_write, gather_blocks: tokens; copy_blocks: pairs */
  int32_t block_bytes;    /* copy_blocks: of a block; gather_blocks: of a token */
  int32_t window;         /* 0 or 1 each: whether the feature is used */
  int32_t softcap;
  int32_t sinks;
} pamx_launch_desc;

/* One dispatch; strings are valid until this thread's next call. */
typedef struct {
  const char* source;        /* file in shaders/ */
  const char* function;      /* host name of the specialisation */
  const char* instantiation; /* the Metal source line that makes it */
  uint32_t constant_mask;    /* bit i: the kernel has function constant i of shaders/params.h */
  uint32_t block_size;
  int32_t has_window;
  int32_t has_softcap;
  int32_t has_sinks;
  int32_t tokens_a_row;    /* query tokens of one sequence that a work row takes */
  uint32_t grid[3];        /* threadgroups */
  uint32_t threadgroup[3]; /* threads */
  uint32_t threadgroup_bytes;
} pamx_launch;

/* The dispatch that would serve this. Runs nothing; PAMX_UNSUPPORTED says why none can. */
int pamx_metal_launch(const pamx_launch_desc* desc, pamx_launch* launch);

/* ---- The plan of a paged-attention call on a GPU ----------------------------------------------
 */

typedef struct {
  int32_t heads, kv_heads;
  int32_t k_dim;  /* MLA: latent and rotary parts together */
  int32_t v_dim;  /* MLA: the latent part */
  int32_t window; /* tokens; 0: none */
  int32_t mla;    /* 0 or 1 each */
  int32_t softcap;
  int32_t sinks;
  int32_t dtype;      /* pamx_dtype of queries and output */
  int32_t pool_dtype; /* pamx_dtype of the pools */
  int32_t block_size;
} pamx_gpu_attention_desc;

/* A GPU, which need not be here. */
typedef struct {
  const char* architecture;    /* for example "applegpu_g15g"; null: unknown */
  int32_t cores;               /* 0: unknown */
  int32_t tensor_units;        /* 1: it has them, 0: not, -1: as the architecture's name says */
  int32_t tensor_compiler;     /* 0 or 1: its system's Metal can compile for them */
  int32_t threadgroup_memory;  /* bytes; 0: 32 KiB */
  int32_t threadgroup_threads; /* 0: 1,024 */
} pamx_gpu_machine;

/* What an A/B run forces; pamx_overrides_here says what this thread's calls follow. */
typedef struct {
  int32_t disable_gqa_decode; /* PAMX_DISABLE_GQA_DECODE */
  int32_t disable_nax;        /* PAMX_DISABLE_NAX */
  int32_t force_partition;    /* tokens, for decode rows; 0: by rule */
} pamx_overrides;

/* The environment's, with pamx_force_partition's in front. */
int pamx_overrides_here(pamx_overrides* overrides);
/* The partition of the calls that this thread queues from now on, on a CPU for all rows and on a
 * GPU for decode rows; 0: as the environment says (PAMX_FORCE_PARTITION), else by rule. A call
 * that cannot have it fails. */
int pamx_force_partition(int32_t tokens);

/* What a kernel can do with a shape: returns null and fills `launch`, or a reason, which is valid
 * until the next call. */
typedef const char* (*pamx_ability)(void* context, const pamx_launch_desc* shape,
                                    pamx_launch* launch);

/* What becomes of the decode rows (sequences with one query token), or of the prefill rows. */
typedef struct {
  int32_t sequences; /* 0: there are none, and the rest has no meaning */
  int32_t kind;      /* pamx_dispatch_kind */
  int32_t kernel;    /* pamx_kernel */
  int32_t rows;
  int32_t partition;      /* tokens; 0: not split */
  int32_t num_partitions; /* of the longest row */
  int32_t turned_down;    /* paths that were turned down */
  int64_t work;           /* simdgroups: of full partitions for gqa_decode, else launched */
  int64_t scratch_bytes;
  const char* path; /* kernel and form in words */
  const char* why;  /* a clause */
} pamx_gpu_plan_part;

typedef struct {
  pamx_launch_desc shape;
  pamx_launch launch;
  const int32_t* rows; /* [shape.rows, 3]: WorkRow of shaders/params.h */
  int64_t partial_out; /* where partial results lie in scratch, in bytes; -1: there are none */
  int64_t partial_stats;
} pamx_gpu_plan_launch;

/* Holds all that is asked of it below: pointers are valid until it is freed. */
typedef struct pamx_gpu_plan pamx_gpu_plan;

/* The plan for these sequences (as in pamx_batch_desc). Runs nothing. overrides: null for those of
 * this thread. ability: null for the library's own kernels. PAMX_UNSUPPORTED says why no kernel
 * serves, or why what is forced cannot run. */
int pamx_plan_gpu_attention(const pamx_gpu_attention_desc* desc, const pamx_gpu_machine* machine,
                            const pamx_overrides* overrides, int32_t num_sequences,
                            const int32_t* query_starts, const int32_t* context_lens,
                            pamx_ability ability, void* ability_context, pamx_gpu_plan** plan);
void pamx_gpu_plan_free(pamx_gpu_plan* plan); /* null is allowed */
/* The plan in sentences, with a reason against each other path; null has an empty one. */
const char* pamx_gpu_plan_text(const pamx_gpu_plan* plan);
/* Of the whole call; at most 512 MiB. Null has none. */
int64_t pamx_gpu_plan_scratch(const pamx_gpu_plan* plan);
/* part: 0 for decode rows, 1 for prefill rows. */
int pamx_gpu_plan_part_of(const pamx_gpu_plan* plan, int32_t part, pamx_gpu_plan_part* out);
/* The i-th path that this part turned down, and the reason, a clause. */
int pamx_gpu_plan_turned_down(const pamx_gpu_plan* plan, int32_t part, int32_t i, const char** path,
                              const char** reason);
/* Launches, in order: each one's results are seen by the next. Null has none. */
int32_t pamx_gpu_plan_launches(const pamx_gpu_plan* plan);
int pamx_gpu_plan_launch_of(const pamx_gpu_plan* plan, int32_t i, pamx_gpu_plan_launch* out);

/* ---- Which attention kernels ran --------------------------------------------------------------
 */

enum pamx_dispatch_kind {
  PAMX_DISPATCH_GQA_DECODE = 0,
  PAMX_DISPATCH_SPLIT_KV = 1,
  PAMX_DISPATCH_UNIFIED = 2,
  PAMX_DISPATCH_TILED_PREFILL = 3,
  PAMX_DISPATCH_NAX_PREFILL = 4,
  PAMX_DISPATCH_MLA = 5,
  PAMX_DISPATCH_CPU = 6,
  PAMX_DISPATCH_REFERENCE = 7
};

/* Has this thread remember what the last call that it queued will run; forgets what it
 * remembered. Returns whether it did so before. */
int32_t pamx_set_dispatch_diagnostics(int32_t on);
/* What the last call that this thread queued runs, up to two kinds: the decode rows' and the
 * prefill rows', each with its partition in tokens (0: not split). Returns how many. Either place
 * may be null. */
int32_t pamx_last_dispatch(int32_t* kinds, int32_t* partitions);
void pamx_clear_last_dispatch(void);
/* Calls of this kind that ran since the library was loaded, in all threads. */
int64_t pamx_dispatch_count(int32_t kind);

/* ---- Memory, matrices, linear, embedding -------------------------------------------------- */

/* How a quantised matrix is multiplied. PAMX_FAST rounds activations to int8, 32 at a time;
 * PAMX_EXACT keeps them in float32. Dense matrices always compute in float32. */
enum pamx_compute { PAMX_FAST = 0, PAMX_EXACT = 1 };

/* Memory for packed weights. Freeing drops the caller's hold; matrices keep their own. */
typedef struct pamx_memory pamx_memory;
/* Zeroed, and in huge pages where the system has them. */
int pamx_memory_allocate(int64_t bytes, pamx_memory** out);
/* Read-only mapping of a file of exactly this size. */
int pamx_memory_map(const char* path, int64_t bytes, pamx_memory** out);
/* Of null: null, and 0. */
void* pamx_memory_data(const pamx_memory* memory);
int64_t pamx_memory_bytes(const pamx_memory* memory);
void pamx_memory_free(pamx_memory* memory); /* null is allowed */

/* A weight matrix [outputs, inputs]: MLX affine quantisation, or dense. */
typedef struct {
  int32_t outputs;    /* at most 2^21, as inputs */
  int32_t inputs;     /* quantised: a multiple of group_size */
  int32_t bits;       /* 2, 3, 4, 6 or 8; 0: dense */
  int32_t group_size; /* 32, 64 or 128; 0: dense */
  int32_t scale_type; /* pamx_dtype that scales and biases, or dense elements, are kept in */
} pamx_matrix_format;

/* Bytes that the packed matrix takes. */
int pamx_matrix_bytes(const pamx_matrix_format* format, int64_t* bytes);
/* weight: uint32 [outputs, inputs * bits / 32] as MLX packs it, or dense elements of source_type
 * [outputs, inputs]. scales and biases: [outputs, inputs / group_size] of source_type; dense:
 * null. All contiguous. panels: pamx_matrix_bytes of memory that may be written. Refuses a scale,
 * bias or element that scale_type cannot hold exactly. */
int pamx_matrix_pack(const pamx_matrix_format* format, const void* weight, const void* scales,
                     const void* biases, int32_t source_type, void* panels);
/* The way back: the same bits again. Refuses a value that target_type cannot hold exactly. */
int pamx_matrix_unpack(const pamx_matrix_format* format, const void* panels, void* weight,
                       void* scales, void* biases, int32_t target_type);

typedef struct pamx_matrix pamx_matrix;
/* A matrix whose panels lie in `memory` from `offset`, a multiple of 64. bias: [outputs] or null,
 * copied. wide: under PAMX_FAST activations keep 15 bits instead of 8, for an output head. */
int pamx_matrix_create(const pamx_matrix_format* format, const pamx_memory* memory, int64_t offset,
                       const float* bias, int32_t wide, pamx_matrix** out);
/* Releases the caller's hold; work already queued keeps its own. Null is allowed. */
void pamx_matrix_free(pamx_matrix* matrix);

/* Queues out = x W^T + bias. x: [..., inputs] of float32, float16 or bfloat16; the placeholder
 * `out` becomes [..., outputs] of the same dtype. Lazy; accumulates in float32. A row's bits do not
 * depend on the other rows, on threads or on the instruction set. */
int pamx_linear(const pamx_matrix* matrix, int32_t compute, pamx_object x, pamx_object out);
/* Queues rows of the matrix, dequantised as MLX does it for scales of type `dtype`: ids are
 * integers of any shape, `out` becomes [..., inputs] of `dtype`. A negative id counts from the
 * end; one outside the matrix gives a row of NaN. */
int pamx_embedding(const pamx_matrix* matrix, pamx_object ids, int32_t dtype, pamx_object out);

/* ---- Small operations ----------------------------------------------------------------------- */

/* Lazy operations on MLX's current default stream, on tensors of any strides in float32, float16
 * or bfloat16. Arithmetic is in float32 and rounded once at the end. */

enum pamx_gate {
  PAMX_GATE_SILU = 0,
  PAMX_GATE_GELU = 1,
  PAMX_GATE_GELU_TANH = 2,
  PAMX_GATE_RELU = 3
};

/* Over the last axis of x. weight and bias are vectors of its length, or 0 for 1 and 0. The result
 * has the dtype that MLX promotes the inputs' to. */
int pamx_rms_norm(pamx_object x, pamx_object weight, float eps, pamx_object out);
int pamx_layer_norm(pamx_object x, pamx_object weight, pamx_object bias, float eps,
                    pamx_object out);

/* act(gate) * up; both of one shape, or up 0: act(gate). */
int pamx_gated(int32_t kind, pamx_object gate, pamx_object up, pamx_object out);

/* Rotary positions. The angle of pair i at position p is
 * (float)p * position_scale * inverse_frequencies[i], each product rounded to float32. Rotated
 * elements are multiplied by `multiplier` (the mscale of yarn and longrope). A pair is two
 * neighbours (traditional) or two elements `pairs` apart. */
typedef struct pamx_rope pamx_rope;
int pamx_rope_create(const float* inverse_frequencies, int32_t pairs, float position_scale,
                     float multiplier, int32_t traditional, pamx_rope** rope);
/* Releases the caller's hold; work already queued keeps its own. Null is allowed. */
void pamx_rope_free(pamx_rope* rope);
/* x is [batch, ..., length, dim] with dim at least 2 * pairs; elements past those pass through.
 * Row t stands at position offset + t, or, with offsets, int32 of shape [batch], [1] or [],
 * row (b, ..., t) at offsets[b] + t. */
int pamx_rope_apply(const pamx_rope* rope, pamx_object x, int32_t offset, pamx_object offsets,
                    pamx_object out);

/* ---- Fused blocks --------------------------------------------------------------------------- */

enum pamx_norm_kind { PAMX_NORM_NONE = 0, PAMX_NORM_RMS = 1, PAMX_NORM_LAYER = 2 };

/* A norm with its parameters, which are copied. */
typedef struct {
  int32_t kind; /* pamx_norm_kind; with PAMX_NORM_NONE the rest is not read */
  int32_t size; /* elements that are normalised together */
  float eps;
  const float* weight; /* [size], or null: 1 */
  const float* bias;   /* [size], or null: 0; for PAMX_NORM_LAYER alone */
} pamx_norm;

/* The attention half of a decoder layer, x [tokens, width] to
 *   x + residual_scale * output_norm(O(attend(rope(qn(Q(n))), rope(kn(K(n))), V(n))))
 * with n = input_norm(x), qn = query_norm and kn = key_norm. Matrices and rope are held, the rest
 * is copied. */
typedef struct {
  int32_t compute; /* pamx_compute */
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim; /* of queries and keys */
  int32_t v_dim;
  float residual_scale;
  pamx_norm input_norm;            /* of `width` */
  pamx_norm query_norm;            /* of head_dim: each head by itself; or of heads * head_dim */
  pamx_norm key_norm;              /* of head_dim, or of kv_heads * head_dim */
  pamx_norm output_norm;           /* of `width`, before the residual is added */
  const pamx_matrix* query;        /* [heads * head_dim, width] */
  const pamx_matrix* key;          /* [kv_heads * head_dim, width] */
  const pamx_matrix* value;        /* [kv_heads * v_dim, width] */
  const pamx_matrix* fused_qkv;    /* instead of the three: their rows one below the other */
  const pamx_matrix* output;       /* [width, heads * v_dim] */
  const pamx_rope* rope;           /* null: none */
  pamx_attention_params attention; /* its window must be 0: each call gives its own */
  const float* sinks;              /* [heads], or null */
} pamx_attention_block_desc;

typedef struct pamx_attention_block pamx_attention_block;
int pamx_attention_block_create(const pamx_attention_block_desc* desc,
                                pamx_attention_block** block);
/* Releases the caller's hold; work already queued keeps its own. Null is allowed. */
void pamx_attention_block_free(pamx_attention_block* block);

/* Queues the block on MLX's current default stream. x is [1, tokens, width] or [tokens, 1, width]
 * in float32, float16 or bfloat16, and `out` becomes the same. Pools are in any of the three
 * formats; they are written in place and handed on as in pamx_paged_attention. window: 0 for none.
 * Rows are float32 between x and out: x is rounded nowhere else than in `out` and in the pools. */
int pamx_attention_block_apply(const pamx_attention_block* block, const pamx_batch* batch,
                               int32_t window, pamx_object x, pamx_object key_pool,
                               pamx_object value_pool, pamx_object out, pamx_object key_pool_out,
                               pamx_object value_pool_out);

/* The MLP half of a decoder layer, x [..., inputs] to
 *   x + residual_scale * output_norm(down(act(gate(n)) * up(n))),  n = input_norm(x),
 * or without "x +". Matrices are held, the rest is copied. */
typedef struct {
  int32_t compute;   /* pamx_compute */
  int32_t gate_kind; /* pamx_gate */
  int32_t residual;  /* 0: x is not added */
  float residual_scale;
  pamx_norm input_norm;
  pamx_norm output_norm;
  const pamx_matrix* gate;          /* [hidden, inputs] */
  const pamx_matrix* up;            /* [hidden, inputs] */
  const pamx_matrix* fused_gate_up; /* instead of the two: gate's rows above up's; hidden is then
                                       a multiple of 16 */
  const pamx_matrix* down;          /* [outputs, hidden] */
} pamx_mlp_block_desc;

typedef struct pamx_mlp_block pamx_mlp_block;
int pamx_mlp_block_create(const pamx_mlp_block_desc* desc, pamx_mlp_block** block);
/* Releases the caller's hold; work already queued keeps its own. Null is allowed. */
void pamx_mlp_block_free(pamx_mlp_block* block);
/* Queues the block: `out` becomes [..., outputs] in x's dtype. */
int pamx_mlp_block_apply(const pamx_mlp_block* block, pamx_object x, pamx_object out);

/* Queues a whole layer as one operation: the attention block, then the MLP block, which must keep
 * the width, on what it gave. Arguments and bits are those of the two calls one after the other. */
int pamx_layer_apply(const pamx_attention_block* attention, const pamx_mlp_block* mlp,
                     const pamx_batch* batch, int32_t window, pamx_object x, pamx_object key_pool,
                     pamx_object value_pool, pamx_object out, pamx_object key_pool_out,
                     pamx_object value_pool_out);

/* ---- Metal, without MLX -----------------------------------------------------------------------
 *
 * The GPU of a Mac, through a command queue of this library's own: the same plans and kernels that
 * the operations on MLX arrays use there. A library that was built without Metal has these
 * functions too; they return PAMX_UNSUPPORTED.
 */

/* 1: this library was built with Metal. Whether there is a device is pamx_metal_gpu's to say. */
int32_t pamx_metal_built(void);

/* Where the shader sources lie, and a metallib of specialisations compiled beforehand, or null.
 * Call before any other function of this section and before any GPU operation. */
int pamx_metal_configure(const char* shader_folder, const char* metallib);

typedef struct {
  const char* name;          /* for example "Apple M3 Max"; strings are valid for good */
  const char* architecture;  /* for example "applegpu_g15s"; empty: unknown */
  const char* os_version;    /* of macOS; empty: unknown */
  int32_t family;            /* n of MTLGPUFamilyApple<n>; 0: unknown */
  int32_t cores;             /* 0: unknown */
  int64_t working_set_bytes; /* that the system recommends to stay below */
  int64_t largest_buffer_bytes;
  int32_t threadgroup_bytes; /* of threadgroup memory */
} pamx_metal_facts;

/* What is known about this machine's GPU. */
int pamx_metal_gpu(pamx_metal_facts* facts);

/* Memory that CPU and GPU share. Between calls the CPU may read and write all of it. */
typedef struct pamx_metal_buffer pamx_metal_buffer;
int pamx_metal_buffer_create(int64_t bytes, pamx_metal_buffer** out);
void* pamx_metal_buffer_data(const pamx_metal_buffer* buffer);
int64_t pamx_metal_buffer_bytes(const pamx_metal_buffer* buffer);
void pamx_metal_buffer_free(pamx_metal_buffer* buffer); /* null is allowed */

/* Rows [tokens, heads, dim] in a buffer: where they begin, in bytes, and the elements from one
 * token, and one head, to the next. The elements of a head are contiguous. */
typedef struct {
  const pamx_metal_buffer* buffer;
  int64_t offset;
  int64_t token_stride;
  int64_t head_stride;
} pamx_metal_rows;

/* The tensors of pamx_paged_attention, in buffers. */
typedef struct {
  int32_t dtype;      /* pamx_dtype of queries, keys, values and out */
  int32_t pool_dtype; /* the same, or a 16-bit type below float32 */
  int32_t heads, kv_heads, k_dim, v_dim;
  pamx_metal_rows queries;
  pamx_metal_rows keys, values;      /* without buffers: nothing to write */
  const pamx_metal_buffer* key_pool; /* from the start of each of these */
  const pamx_metal_buffer* value_pool;
  const pamx_metal_buffer* sinks; /* float32 [heads], or null */
  const pamx_metal_buffer* out;   /* [tokens, heads, v_dim], contiguous */
} pamx_metal_tensors;

typedef struct {
  double gpu_seconds; /* from the first dispatch's start to the last one's end */
  const char* text;   /* the plan in sentences; valid until this thread's next call */
} pamx_metal_report;

/* Plans the call, runs it and waits for it. report may be null. */
int pamx_metal_attention(const pamx_batch* batch, const pamx_attention_params* params,
                         const pamx_metal_tensors* tensors, pamx_metal_report* report);

/* Copies blocks of block_bytes, a multiple of 16, inside a pool: sources[i] to targets[i], in
 * order. Waits. */
int pamx_metal_copy_blocks(const pamx_metal_buffer* pool, int64_t block_bytes,
                           const int32_t* sources, const int32_t* targets, int32_t count);

/* Lays the first `tokens` tokens of a sequence out densely: its blocks are block_table[i], each of
 * block_size tokens of token_bytes, a multiple of 16. Waits. */
int pamx_metal_gather(const pamx_metal_buffer* pool, const int32_t* block_table, int32_t num_blocks,
                      int32_t tokens, int32_t block_size, int32_t token_bytes,
                      const pamx_metal_buffer* out);

/* Bytes of partial results that this library keeps or lends out; at most the cap of
 * shaders/limits.h. */
int pamx_metal_scratch_bytes(int64_t* bytes);

/* What a dispatch reads or writes at a buffer index: a buffer from an offset, or bytes. */
typedef struct {
  int32_t index;
  const pamx_metal_buffer* buffer; /* null: bytes */
  int64_t offset;                  /* in bytes */
  const void* bytes;               /* at most 4,096, copied */
  int64_t size;                    /* of bytes */
} pamx_metal_binding;

/* Runs one dispatch as it stands and waits for it: for tests and measurements of single kernels.
 * Fields of the launch that say nothing about its grid, function and constants are not read. */
int pamx_metal_run(const pamx_launch* launch, const pamx_metal_binding* bindings, int32_t count,
                   double* gpu_seconds);
