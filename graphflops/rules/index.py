"""Which module holds the rule of each operator. Written by `python -m graphflops.rules`; a test compares."""

from graphflops.rules.packed import unpacked

RULES = unpacked("""\
graphflops.rules.activation
 aten: _prelu_kernel _prelu_kernel_backward celu elu elu_backward gelu gelu_backward glu glu_backward hardshrink
 aten: hardshrink_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward
 aten: infinitely_differentiable_gelu_backward leaky_relu leaky_relu_backward log_sigmoid log_sigmoid_backward
 aten: log_sigmoid_forward logit_backward mish mish_backward prelu relu relu6 rrelu rrelu_with_noise
 aten: rrelu_with_noise_backward rrelu_with_noise_functional selu sigmoid_backward silu silu_backward softplus
 aten: softplus_backward softshrink softshrink_backward tanh_backward threshold threshold_backward
graphflops.rules.attention
 aten: _fused_sdp_choice _scaled_dot_product_attention_math _scaled_dot_product_attention_math_for_mps
 aten: _scaled_dot_product_cudnn_attention _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
 aten: _scaled_dot_product_flash_attention.quantized _scaled_dot_product_flash_attention_for_cpu
 aten: _scaled_dot_product_fused_attention_overrideable _triton_scaled_dot_attention scaled_dot_product_attention
graphflops.rules.attention_backward
 aten: _cudnn_attention_backward _efficient_attention_backward _flash_attention_backward
 aten: _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention_backward
 aten: _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu_backward
 aten: _scaled_dot_product_fused_attention_overrideable_backward
 torch_attn: _varlen_attn_backward
graphflops.rules.attention_module
 aten: _native_multi_head_attention _transform_bias_rescale_qkv _transformer_encoder_layer_fwd _triton_multi_head_attention
graphflops.rules.attention_packed
 aten: _cudnn_attention_forward _cudnn_attention_forward_no_dropout_inplace _efficient_attention_forward
 aten: _flash_attention_forward _flash_attention_forward.quantized _flash_attention_forward_no_dropout_inplace
 torch_attn: _varlen_attn _varlen_attn_out
graphflops.rules.batch_norm
 aten: _batch_norm_impl_index _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional
 aten: _native_batch_norm_legit _native_batch_norm_legit.no_stats _native_batch_norm_legit_functional
 aten: _native_batch_norm_legit_no_training batch_norm batch_norm_elemt batch_norm_gather_stats
 aten: batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats cudnn_batch_norm instance_norm
 aten: miopen_batch_norm native_batch_norm
graphflops.rules.collectives
 _c10d_functional: _wrap_tensor_autograd all_gather_into_tensor all_gather_into_tensor_coalesced all_gather_into_tensor_out
 _c10d_functional: all_reduce all_reduce_coalesced all_to_all_single batch_p2p_ops broadcast irecv isend
 _c10d_functional: reduce_scatter_tensor reduce_scatter_tensor_coalesced reduce_scatter_tensor_out wait_tensor wait_tensors
 _c10d_functional_autograd: all_gather_into_tensor all_to_all_single reduce_scatter_tensor
 _dtensor: shard_dim_alltoall
 c10d: barrier recv recv_ send
graphflops.rules.contraction
 aten: _trilinear bilinear einsum ger inner kron outer tensordot
graphflops.rules.control
 higher_order: _export_tracepoint associative_scan auto_functionalized_v2 cond foreach_map hints_wrapper invoke_subgraph
 higher_order: local_map_hop map map_impl out_dtype print scan strict_mode switch tag_activation_checkpoint while_loop
 higher_order: while_loop_stack_output with_effects wrap wrap_activation_checkpoint wrap_with_autocast
 higher_order: wrap_with_set_grad_enabled
graphflops.rules.conv
 aten: _conv_depthwise2d _convolution _convolution_mode _nnpack_spatial_convolution _slow_conv2d_forward conv1d conv2d
 aten: conv3d conv_depthwise3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution
 aten: convolution_overrideable cudnn_convolution cudnn_convolution_add_relu cudnn_convolution_relu
 aten: cudnn_convolution_transpose miopen_convolution miopen_convolution_add_relu miopen_convolution_relu
 aten: miopen_convolution_transpose miopen_depthwise_convolution mkldnn_convolution mkldnn_reorder_conv2d_weight
 aten: mkldnn_reorder_conv3d_weight slow_conv3d slow_conv3d_forward slow_conv_dilated2d slow_conv_dilated3d
 aten: slow_conv_transpose2d slow_conv_transpose3d thnn_conv2d
graphflops.rules.conv_backward
 aten: _convolution_double_backward _slow_conv2d_backward.output_mask conv_tbc_backward convolution_backward
 aten: convolution_backward_overrideable
graphflops.rules.creation
 aten: _dim_arange _efficientzerotensor _new_zeros_with_same_feature_meta _shape_as_tensor arange arange.start
 aten: arange.start_step bartlett_window blackman_window empty empty_like empty_permuted empty_strided eye fill from_file
 aten: full full_like hamming_window hann_window kaiser_window linalg_vander linspace logspace new_empty new_empty_strided
 aten: new_full new_ones new_zeros ones ones_like range scalar_tensor tril_indices triu_indices vander zero zeros zeros_like
graphflops.rules.ctc
 aten: _ctc_loss _ctc_loss_backward _cudnn_ctc_loss _use_cudnn_ctc_loss _use_miopen_ctc_loss ctc_loss miopen_ctc_loss
graphflops.rules.cumulative
 aten: _cummax_helper _cummin_helper _logcumsumexp cummax cummaxmin_backward cummin cumprod cumprod_backward cumsum
 aten: cumulative_trapezoid.dx cumulative_trapezoid.x diff gradient logcumsumexp trapezoid.dx trapezoid.x trapz.dx trapz.x
graphflops.rules.distance
 aten: _cdist_backward _cdist_forward _euclidean_dist _pdist_backward _pdist_forward cdist pairwise_distance pdist
graphflops.rules.dropout
 aten: _fused_dropout _masked_scale alpha_dropout dropout feature_alpha_dropout feature_dropout native_dropout
 aten: native_dropout_backward
graphflops.rules.embedding
 aten: _embedding_bag _embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_forward_only
 aten: _embedding_bag_per_sample_weights_backward _embedding_bag_sparse_backward embedding embedding_backward embedding_bag
 aten: embedding_bag.padding_idx embedding_dense_backward embedding_renorm embedding_renorm_ embedding_sparse_backward
 aten: one_hot
graphflops.rules.fake_quantize
 aten: _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine_backward
 aten: _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_tensor_affine_backward
 aten: _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_moving_avg_obs_fq_helper
 aten: _fused_moving_avg_obs_fq_helper_functional fake_quantize_per_channel_affine
 aten: fake_quantize_per_channel_affine_cachemask fake_quantize_per_channel_affine_cachemask_backward
 aten: fake_quantize_per_tensor_affine fake_quantize_per_tensor_affine_cachemask
 aten: fake_quantize_per_tensor_affine_cachemask_backward fused_moving_avg_obs_fake_quant
 quantized_decomposed: fake_quant_per_channel
graphflops.rules.flex
 higher_order: flat_apply flex_attention flex_attention_backward
graphflops.rules.foreach
 aten: _amp_foreach_non_finite_check_and_unscale _amp_update_scale _foreach_abs _foreach_acos _foreach_add _foreach_addcdiv
 aten: _foreach_addcmul _foreach_asin _foreach_atan _foreach_ceil _foreach_clamp_max _foreach_clamp_min _foreach_clone
 aten: _foreach_copy _foreach_cos _foreach_cosh _foreach_div _foreach_erf _foreach_erfc _foreach_exp _foreach_expm1
 aten: _foreach_floor _foreach_frac _foreach_lerp _foreach_lgamma _foreach_log _foreach_log10 _foreach_log1p _foreach_log2
 aten: _foreach_max _foreach_maximum _foreach_minimum _foreach_mm _foreach_mul _foreach_neg _foreach_norm _foreach_pow
 aten: _foreach_powsum _foreach_reciprocal _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin
 aten: _foreach_sinh _foreach_sqrt _foreach_sub _foreach_tan _foreach_tanh _foreach_trunc _foreach_zero _fused_adagrad
 aten: _fused_adagrad.tensor_lr _fused_adagrad_ _fused_adam _fused_adamw _fused_sgd
graphflops.rules.fourier
 aten: _fft_c2c _fft_c2r _fft_r2c fft_fft fft_fft2 fft_fftfreq fft_fftn fft_fftshift fft_hfft fft_hfft2 fft_hfftn fft_ifft
 aten: fft_ifft2 fft_ifftn fft_ifftshift fft_ihfft fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2
 aten: fft_rfftfreq fft_rfftn
 prims: fft_c2c fft_c2r fft_r2c
graphflops.rules.functorch
 torch._functorch.predispatch: _add_batch_dim _remove_batch_dim _unwrap_for_grad _vmap_decrement_nesting
 torch._functorch.predispatch: _vmap_increment_nesting lazy_load_decompositions
graphflops.rules.indexing
 aten: _gather_sparse_backward _index_put_impl _index_put_impl_ _unsafe_index _unsafe_index_put _unsafe_masked_index
 aten: _unsafe_masked_index_put_accumulate gather gather_backward index index_add index_add_ index_copy index_copy_
 aten: index_fill index_fill_ index_put index_put_ index_reduce index_reduce_ index_select index_select_backward put put_
 aten: scatter scatter_ scatter_add scatter_add_ scatter_reduce scatter_reduce_ take take_along_dim
graphflops.rules.joining
 aten: _cat _chunk_cat _pack_padded_sequence _pack_padded_sequence_backward _pad_packed_sequence _stack block_diag
 aten: cartesian_prod cat column_stack combinations concat concatenate dstack flatten_dense_tensors hstack pad_sequence
 aten: row_stack stack vstack
graphflops.rules.linalg
 aten: _linalg_check_errors _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_svd _lu_with_info cholesky det
 aten: geqrf linalg_cholesky linalg_cholesky_ex linalg_det linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
 aten: linalg_householder_product linalg_ldl_factor linalg_ldl_factor_ex linalg_lu linalg_lu_factor linalg_lu_factor_ex
 aten: linalg_matrix_sqrth linalg_polar linalg_qr linalg_slogdet linalg_svd linalg_svdvals logdet lu_unpack orgqr ormqr qr
 aten: slogdet svd
 prims: svd
graphflops.rules.loss
 aten: binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits cosine_embedding_loss
 aten: hinge_embedding_loss huber_loss huber_loss_backward kl_div l1_loss l1_loss_backward margin_ranking_loss mse_loss
 aten: mse_loss_backward poisson_nll_loss smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward
 aten: triplet_margin_loss
graphflops.rules.loss_class
 aten: cross_entropy_loss multi_margin_loss multi_margin_loss_backward multilabel_margin_loss
 aten: multilabel_margin_loss_backward multilabel_margin_loss_forward nll_loss nll_loss2d nll_loss2d_backward
 aten: nll_loss2d_forward nll_loss_backward nll_loss_forward nll_loss_nd
 torch_nn: _linear_cross_entropy_batch_chunked _linear_cross_entropy_batch_chunked_no_reduction
graphflops.rules.lowprecision
 aten: _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _cslt_sparse_mm _dyn_quant_matmul_4bit
 aten: _dyn_quant_pack_4bit_weight _int_mm _mixed_dtypes_linear _scaled_addmm _scaled_grouped_mm _scaled_grouped_mm_v2
 aten: _scaled_mm _scaled_mm_v2 _sparse_semi_structured_addmm _sparse_semi_structured_linear _sparse_semi_structured_mm
 aten: _weight_int4pack_mm _weight_int4pack_mm_for_cpu _weight_int4pack_mm_with_scales_and_zeros _weight_int8pack_mm
 aten: fbgemm_linear_int8_weight fbgemm_linear_int8_weight_fp32_activation
 quantized_decomposed: mixed_linear mixed_mm
graphflops.rules.matmul
 aten: _addmm_activation _compute_linear_combination _grouped_mm addbmm addmm addmm.dtype addmv addr baddbmm baddbmm.dtype
 aten: bmm bmm.dtype chain_matmul dot linalg_matmul linalg_matrix_power linalg_multi_dot linalg_vecdot linear
 aten: linear_backward matmul matmul_backward matrix_power mkldnn_linear mkldnn_linear_backward mkldnn_linear_backward_input
 aten: mkldnn_linear_backward_weights mm mm.dtype mv vdot
graphflops.rules.movement
 aten: _autocast_to_full_precision _autocast_to_reduced_precision _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half
 aten: _cast_Int _cast_Long _cast_Short _copy_from _copy_from_and_resize _pin_memory _resize_output _resize_output_ _to_copy
 aten: _to_cpu chalf clone contiguous copy fill_diagonal_ lift_fresh_copy masked_scatter masked_scatter_
 aten: masked_scatter_backward masked_select masked_select_backward pin_memory resize resize_ resize_as resize_as_ set set_
 aten: set_data sparse_resize_ type_as
 aten.to: device dtype dtype_layout other prim_Device prim_dtype prim_other
graphflops.rules.norm
 aten: _fused_rms_norm group_norm layer_norm native_group_norm native_layer_norm rms_norm
graphflops.rules.norm_backward
 aten: _batch_norm_impl_index_backward _fused_rms_norm_backward batch_norm_backward batch_norm_backward_elemt
 aten: batch_norm_backward_reduce cudnn_batch_norm_backward miopen_batch_norm_backward native_batch_norm_backward
 aten: native_group_norm_backward native_layer_norm_backward
graphflops.rules.onnx.activation
 onnx: Abs Acos Acosh Add Affine And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Celu
 onnx: Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish Hardmax Hardmax.1
 onnx: Hardmax.11 IsInf IsNaN LeakyRelu Less LessOrEqual Log LogSoftmax LogSoftmax.1 LogSoftmax.11 Max Mean Min Mish Mod Mul
 onnx: Neg Not Or PRelu ParametricSoftplus Pow Reciprocal Relu Round ScaledTanh Selu Shrink Sigmoid Sign Sin Sinh Softmax
 onnx: Softmax.1 Softmax.11 Softplus Softsign Sqrt Sub Sum SwiGLU Swish Tan Tanh ThresholdedRelu Where Xor
graphflops.rules.onnx.attention
 ai: onnx.preview.FlexAttention
 onnx: Attention LinearAttention RotaryEmbedding
graphflops.rules.onnx.cast
 onnx: Cast CastLike
graphflops.rules.onnx.contraction
 onnx: Det Einsum
graphflops.rules.onnx.control
 onnx: If Loop Scan Scan.8 SequenceMap
graphflops.rules.onnx.conv
 onnx: CausalConvWithState Conv ConvInteger ConvTranspose DeformConv
graphflops.rules.onnx.creation
 onnx: Constant ConstantOfShape EyeLike OneHot Range
graphflops.rules.onnx.cumulative
 onnx: CumProd CumSum TopK
graphflops.rules.onnx.indexing
 onnx: CenterCropPad Gather GatherElements GatherND Pad Scatter ScatterElements ScatterND Slice Split TensorScatter
 onnx.Split: 1 11 13 2
graphflops.rules.onnx.loss
 onnx: NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss
graphflops.rules.onnx.microsoft_attention
 com: microsoft.Attention microsoft.MultiHeadAttention
graphflops.rules.onnx.microsoft_channels
 com.microsoft: ConvTransposeWithDynamicPads FusedConv MaxpoolWithMask NhwcConv NhwcFusedConv NhwcMaxPool
 com.microsoft.nchwc: AveragePool Conv GlobalAveragePool GlobalMaxPool MaxPool ReorderInput ReorderOutput Upsample
 com.ms.internal.nhwc: AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool GlobalLpPool
 com.ms.internal.nhwc: GlobalMaxPool GridSample InstanceNormalization LRN LpPool MaxPool QLinearAveragePool QLinearConv
 com.ms.internal.nhwc: SpaceToDepth
graphflops.rules.onnx.microsoft_decoder
 com: microsoft.DecoderAttention microsoft.DecoderMaskedMultiHeadAttention microsoft.DecoderMaskedSelfAttention
graphflops.rules.onnx.microsoft_elementwise
 com.microsoft: BiasAdd BiasDropout BiasGelu BiasSoftmax BiasSplitGelu BitmaskBiasDropout BitmaskDropout ComplexMul
 com.microsoft: ComplexMulConj FastGelu GatedAdd Gelu LinearAttentionGate QuickGelu ScaledSiLU
graphflops.rules.onnx.microsoft_generation
 com.microsoft: BeamSearch GreedySearch Sampling WhisperBeamSearch
graphflops.rules.onnx.microsoft_grouped
 com: microsoft.GroupQueryAttention microsoft.SparseAttention
graphflops.rules.onnx.microsoft_integer
 com.microsoft: DequantizeWithOrder DynamicQuantizeMatMul MatMulIntegerToFloat MulInteger QAttention QGemm QOrderedAttention
 com.microsoft: QOrderedGelu QOrderedMatMul QuantizeWithOrder ReduceSumInteger
graphflops.rules.onnx.microsoft_linear
 com.microsoft: CausalConvWithState EngramGate GatedDeltaNet HyperConnectionPostMix HyperConnectionPreMix LinearAttention
 com.microsoft: VarlenCausalConvWithState
graphflops.rules.onnx.microsoft_matmul
 com.microsoft: FusedGemm FusedMatMul FusedMatMulActivation GemmFastGelu GemmFloat8 MatMulInteger16 SparseToDenseMatMul
 com.microsoft: TransposeMatMul
graphflops.rules.onnx.microsoft_moe
 com: microsoft.MoE microsoft.QMoE
graphflops.rules.onnx.microsoft_norm
 com.microsoft: BranchwiseRMSNorm EmbedLayerNormalization GatedRMSNorm GroupNorm QEmbedLayerNormalization
 com.microsoft: QOrderedLayerNormalization SimplifiedLayerNormalization SkipGroupNorm SkipLayerNormalization
 com.microsoft: SkipSimplifiedLayerNormalization
 onnx: SimplifiedLayerNormalization SkipSimplifiedLayerNormalization
graphflops.rules.onnx.microsoft_packed
 com: microsoft.PackedAttention microsoft.PackedMultiHeadAttention microsoft.PagedAttention
graphflops.rules.onnx.microsoft_positions
 com.microsoft: GatedRelativePositionBias GemmaRotaryEmbedding MRotaryEmbedding RelativePositionBias RotaryEmbedding
graphflops.rules.onnx.microsoft_qlinear
 com.microsoft: DequantizeLinear QLinearAdd QLinearAveragePool QLinearConcat QLinearConv QLinearGlobalAveragePool
 com.microsoft: QLinearLeakyRelu QLinearMul QLinearReduceMean QLinearSigmoid QLinearSoftmax QLinearWhere QuantizeLinear
graphflops.rules.onnx.microsoft_recurrent
 com: microsoft.AttnLSTM microsoft.DynamicQuantizeLSTM
graphflops.rules.onnx.microsoft_sparse
 com.microsoft: DynamicSparseAttention LongformerAttention QOrderedLongformerAttention SparsePagedAttention
graphflops.rules.onnx.microsoft_text
 com.microsoft: BifurcationDetector NGramHashMapping NGramRepeatBlock Tokenizer WordConvEmbedding
graphflops.rules.onnx.microsoft_various
 TRT: EfficientNMS_TRT
 com.microsoft: CDist CropAndResize DequantizeBFP DynamicTimeWarping ExpandDims GatherND GridSample Inverse Irfft
 com.microsoft: IsAllFinite MurmurHash3 Pad QuantizeBFP Range RemovePadding RestorePadding Rfft SampleOp TorchEmbedding
 com.microsoft: Trilu UnfoldTensor Unique
 onnx: Crop DynamicSlice EfficientNMS_TRT GivenTensorFill ImageScaler MemcpyFromHost MemcpyToHost Scale
graphflops.rules.onnx.microsoft_weights
 com.microsoft: GatherBlockQuantized MatMulBlockQuantizedFp4Weight MatMulBlockQuantizedFp8Weight MatMulBnb4 MatMulFpQ4
 com.microsoft: MatMulNBits MatMulNBitsMlp MatMulNBitsQkv
graphflops.rules.onnx.ml
 ai: onnx.ml.LabelEncoder.1
 ai.onnx.ml: ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer Imputer LabelEncoder
 ai.onnx.ml: LinearClassifier LinearRegressor Normalizer OneHotEncoder SVMClassifier SVMRegressor Scaler ZipMap
graphflops.rules.onnx.ml_trees
 ai: onnx.ml.TreeEnsemble onnx.ml.TreeEnsembleClassifier onnx.ml.TreeEnsembleRegressor
graphflops.rules.onnx.movement
 onnx: BitCast Col2Im Concat Concat.1 DepthToSpace Expand Flatten Identity Reshape ReverseSequence Shape Size SpaceToDepth
 onnx: Squeeze Tile Tile.1 Transpose Trilu Unsqueeze
graphflops.rules.onnx.norm
 onnx: BatchNormalization Dropout GroupNormalization InstanceNormalization LRN LayerNormalization LpNormalization
 onnx: MeanVarianceNormalization RMSNormalization
 onnx.BatchNormalization: 1 6 7 9
 onnx.Dropout: 1 10 6 7
graphflops.rules.onnx.pool
 onnx: AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool MaxUnpool
graphflops.rules.onnx.quantized
 onnx: DequantizeLinear DynamicQuantizeLinear QLinearConv QLinearMatMul QuantizeLinear
graphflops.rules.onnx.random
 onnx: Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike
graphflops.rules.onnx.recurrent
 onnx: GRU LSTM RNN
graphflops.rules.onnx.reduce
 onnx: ArgMax ArgMin Gemm MatMul MatMulInteger ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin
 onnx: ReduceProd ReduceSum ReduceSumSquare
graphflops.rules.onnx.resize
 onnx: Resize Resize.10 Upsample Upsample.1
graphflops.rules.onnx.selection
 onnx: Compress NonMaxSuppression NonZero Unique
graphflops.rules.onnx.sequence
 onnx: ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt SequenceConstruct SequenceEmpty
 onnx: SequenceErase SequenceInsert SequenceLength SplitToSequence
graphflops.rules.onnx.signal
 onnx: BlackmanWindow DFT DFT.17 HammingWindow HannWindow MelWeightMatrix STFT
graphflops.rules.onnx.text
 onnx: ImageDecoder RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer
graphflops.rules.onnx.training
 ai.onnx.preview.training: Adagrad Adam Gradient Momentum
graphflops.rules.onnx.vision
 onnx: AffineGrid GridSample MaxRoiPool RoiAlign
graphflops.rules.padding
 aten: _pad_circular _pad_enum col2im constant_pad_nd im2col pad reflection_pad1d reflection_pad1d_backward reflection_pad2d
 aten: reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward replication_pad1d replication_pad1d_backward
 aten: replication_pad2d replication_pad2d_backward replication_pad3d replication_pad3d_backward
graphflops.rules.parts
 aten: chunk diagonal dsplit hsplit linalg_diagonal narrow select slice slice_inverse split split_with_sizes tensor_split
 aten: unbind unsafe_chunk unsafe_split unsafe_split_with_sizes vsplit
graphflops.rules.pointwise
 aten: __and__ __iand__ __ilshift__ __ior__ __irshift__ __ixor__ __lshift__ __or__ __rshift__ __xor__ _add_relu _conj
 aten: _conj_copy _conj_physical _neg_view _neg_view_copy abs absolute add addcdiv addcmul allclose angle arctan2 atan2
 aten: bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min
 aten: clip complex conj conj_physical copysign deg2rad div div.Scalar_mode div.Tensor_mode divide divide.Scalar_mode
 aten: divide.Tensor_mode eq equal fix float_power floor floor_divide fmax fmin fmod frac frexp gcd ge greater greater_equal
 aten: gt heaviside hypot isclose isfinite isinf isnan isneginf isposinf isreal lcm ldexp le lerp less less_equal
 aten: logical_and logical_not logical_or logical_xor lt masked_fill max.other maximum min.other minimum mul multiply
 aten: nan_to_num ne neg negative nextafter not_equal polar positive pow rad2deg reciprocal remainder resolve_conj
 aten: resolve_neg round rsub sgn sign signbit special_round square sub subtract true_divide trunc where where.default
 prims: conj frexp view_of
graphflops.rules.pool
 aten: _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
 aten: adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_avg_pool3d_backward adaptive_max_pool1d
 aten: adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward avg_pool1d
 aten: avg_pool2d avg_pool2d_backward avg_pool3d avg_pool3d_backward fractional_max_pool2d fractional_max_pool2d_backward
 aten: fractional_max_pool3d fractional_max_pool3d_backward max_pool1d max_pool1d_with_indices max_pool2d
 aten: max_pool2d_backward max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d max_pool3d_with_indices
 aten: max_pool3d_with_indices_backward max_unpool2d max_unpool3d mkldnn_adaptive_avg_pool2d
 aten: mkldnn_adaptive_avg_pool2d_backward mkldnn_max_pool2d mkldnn_max_pool2d_backward mkldnn_max_pool3d
 aten: mkldnn_max_pool3d_backward quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d
graphflops.rules.prims
 prims: _make_token _sink_tokens abs acos acosh add as_strided as_strided_scatter asin asinh atan atan2 atanh bessel_i0
 prims: bessel_i0e bessel_i1 bessel_i1e bessel_j0 bessel_j1 bitwise_and bitwise_not bitwise_or bitwise_xor broadcast_in_dim
 prims: cat cbrt ceil clone collapse collapse_view conj_physical convert_element_type copy_strided copy_to cos cosh
 prims: device_put digamma div empty empty_permuted empty_strided eq erf erf_inv erfc erfcx exp exp2 expm1 fill floor fmax
 prims: fmin fmod full full_like gcd ge gt hypot igamma igammac imag iota isfinite item le lgamma log log10 log1p log2 lt
 prims: maximum minimum mul ndtri ne neg nextafter normal pow real reciprocal remainder reshape resize rev round rsqrt
 prims: scalar_tensor shift_left shift_right_arithmetic sign signbit sin sinh spherical_bessel_j0 split_dim sqrt squeeze sub
 prims: tan tanh transpose trunc uniform view_of_dtype where zeta
graphflops.rules.quantized
 aten: _make_per_channel_quantized_tensor _make_per_tensor_quantized_tensor dequantize dequantize.tensors int_repr
 aten: quantize_per_channel quantize_per_tensor quantize_per_tensor.tensors quantize_per_tensor_dynamic
 quantized_decomposed: _choose_qparams_per_token_asymmetric_impl choose_qparams choose_qparams_per_token
 quantized_decomposed: choose_qparams_per_token_asymmetric choose_qparams_symmetric convert_element_type
 quantized_decomposed: dequantize_per_channel dequantize_per_channel_group dequantize_per_tensor dequantize_per_token
 quantized_decomposed: embedding_2bit embedding_4bit embedding_byte quantize_per_channel quantize_per_channel_group
 quantized_decomposed: quantize_per_tensor quantize_per_token
graphflops.rules.random
 aten: _dirichlet_grad _fill_mem_eff_dropout_mask_ _philox_key_fold_in _philox_key_split _philox_normal _philox_randint
 aten: _philox_uniform _sample_dirichlet _sobol_engine_draw _sobol_engine_ff_ _sobol_engine_initialize_state_
 aten: _sobol_engine_scramble_ _standard_gamma _standard_gamma_grad bernoulli bernoulli.Tensor bernoulli.p bernoulli_.float
 aten: binomial cauchy exponential geometric log_normal multinomial normal normal.float_float normal_ normal_functional
 aten: poisson rand rand_like randint randint.low randint.low_generator randint_like randn randn_like random randperm
 aten: uniform
 rngprims: philox_rand
graphflops.rules.rearrange
 aten: as_strided_scatter channel_shuffle diag diag_embed diagflat diagonal_backward diagonal_scatter flip fliplr flipud
 aten: native_channel_shuffle pixel_shuffle pixel_unshuffle repeat repeat_interleave.Tensor repeat_interleave.self_Tensor
 aten: repeat_interleave.self_int roll rot90 select_backward select_scatter slice_backward slice_scatter tile tril triu
 aten: unfold_backward
graphflops.rules.recurrent
 aten: gru.data gru.input gru_cell lstm.data lstm.input lstm_cell rnn_relu.data rnn_relu.input rnn_relu_cell rnn_tanh.data
 aten: rnn_tanh.input rnn_tanh_cell
graphflops.rules.recurrent_backends
 aten: _cudnn_rnn _cudnn_rnn_backward _cudnn_rnn_flatten_weight _thnn_differentiable_gru_cell_backward
 aten: _thnn_differentiable_lstm_cell_backward _thnn_fused_gru_cell _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell
 aten: _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl _use_cudnn_rnn_flatten_weight miopen_rnn
 aten: mkldnn_rnn_layer mkldnn_rnn_layer_backward quantized_gru_cell quantized_lstm_cell quantized_rnn_relu_cell
 aten: quantized_rnn_tanh_cell
graphflops.rules.reduce
 aten: _aminmax _is_all_true _is_any_true all all.dims amax amin aminmax any any.dims argmax argmin count_nonzero
 aten: hash_tensor logsumexp max mean min nanmean nansum prod special_logsumexp std std.correction std.dim std_mean
 aten: std_mean.correction std_mean.dim sum sum_to_size value_selecting_reduction_backward var var.correction var.dim
 aten: var_mean var_mean.correction var_mean.dim
 prims: amax amin prod sum var xor_sum
graphflops.rules.resample
 aten: _grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback_backward _upsample_bicubic2d_aa
 aten: _upsample_bicubic2d_aa.vec _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa _upsample_bilinear2d_aa.vec
 aten: _upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa _upsample_lanczos2d_aa.vec _upsample_lanczos2d_aa_backward
 aten: _upsample_nearest_exact1d _upsample_nearest_exact1d.vec _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
 aten: _upsample_nearest_exact2d.vec _upsample_nearest_exact2d_backward _upsample_nearest_exact3d
 aten: _upsample_nearest_exact3d.vec _upsample_nearest_exact3d_backward affine_grid_generator affine_grid_generator_backward
 aten: cudnn_affine_grid_generator cudnn_affine_grid_generator_backward cudnn_grid_sampler cudnn_grid_sampler_backward
 aten: grid_sampler grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward upsample_bicubic2d
 aten: upsample_bicubic2d.vec upsample_bicubic2d_backward upsample_bilinear2d upsample_bilinear2d.vec
 aten: upsample_bilinear2d_backward upsample_linear1d upsample_linear1d.vec upsample_linear1d_backward upsample_nearest1d
 aten: upsample_nearest1d.vec upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d.vec
 aten: upsample_nearest2d_backward upsample_nearest3d upsample_nearest3d.vec upsample_nearest3d_backward
 aten: upsample_trilinear3d upsample_trilinear3d.vec upsample_trilinear3d_backward
graphflops.rules.scalar
 _operator: abs add and_ eq floordiv ge getitem gt le lshift lt mod mul ne neg not_ or_ pos pow rshift sub truediv truth xor
 aten: _assert_async _assert_scalar _assert_tensor_metadata _debug_has_internal_overlap _functional_assert_async
 aten: _functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size _is_zerotensor
 aten: _local_scalar_dense _make_dep_token _print _propagate_xla_data _version dim is_coalesced is_complex is_conj
 aten: is_contiguous is_distributed is_floating_point is_inference is_leaf is_neg is_nonzero is_pinned is_same_size
 aten: is_signed item numel output_nr record_stream retain_grad retains_grad size storage_offset stride sym_constrain_range
 aten: sym_constrain_range_for_size sym_is_contiguous sym_numel sym_size sym_storage_offset sym_stride
 builtins: abs bool float int max min round
 math: acos asin atan ceil cos cosh exp fabs floor fmod log log2 pow sin sinh sqrt tan tanh trunc
 profiler: _record_function_enter _record_function_enter_new _record_function_exit
 torch: _sym_acos _sym_asin _sym_atan _sym_cos _sym_cosh _sym_exp _sym_log _sym_log2 _sym_sin _sym_sinh _sym_sqrt _sym_tan
 torch: _sym_tanh sym_acos sym_asin sym_atan sym_cos sym_cosh sym_exp sym_float sym_int sym_ite sym_log sym_log2 sym_max
 torch: sym_min sym_not sym_sin sym_sinh sym_sqrt sym_sum sym_tan sym_tanh
graphflops.rules.search
 aten: _unique _unique2 argwhere nonzero nonzero_numpy nonzero_static unique_consecutive unique_dim unique_dim_consecutive
graphflops.rules.signal
 aten: istft stft stft.center
graphflops.rules.similarity
 aten: _weight_norm _weight_norm_differentiable_backward _weight_norm_interface _weight_norm_interface_backward
 aten: cosine_similarity norm_except_dim renorm
graphflops.rules.softmax
 aten: _log_softmax _log_softmax_backward_data _masked_softmax _masked_softmax_backward _safe_softmax _softmax
 aten: _softmax_backward_data log_softmax softmax special_log_softmax special_softmax
graphflops.rules.solve
 aten: _cholesky_solve_helper _linalg_solve_ex cholesky_inverse cholesky_solve cross inverse linalg_cond linalg_cross
 aten: linalg_inv linalg_inv_ex linalg_ldl_solve linalg_lstsq linalg_lu_solve linalg_matrix_exp linalg_matrix_rank
 aten: linalg_matrix_rank.atol_rtol_float linalg_matrix_rank.atol_rtol_tensor linalg_matrix_rank.tol_tensor linalg_pinv
 aten: linalg_pinv.atol_rtol_float linalg_pinv.atol_rtol_tensor linalg_solve linalg_solve_ex linalg_solve_triangular
 aten: linalg_tensorinv linalg_tensorsolve lu_solve matrix_exp matrix_exp_backward pinverse triangular_solve
graphflops.rules.sort
 aten: argsort argsort.stable bucketize isin msort searchsorted sort sort.stable sort.values_stable topk
graphflops.rules.sparse
 aten: _coalesce _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo _jagged_to_padded_dense_forward
 aten: _padded_dense_to_jagged_forward _sparse_addmm _sparse_bsc_tensor_unsafe _sparse_bsr_tensor_unsafe
 aten: _sparse_compressed_tensor_unsafe _sparse_coo_tensor_unsafe _sparse_coo_tensor_with_dims_and_tensors
 aten: _sparse_csc_tensor_unsafe _sparse_csr_tensor_unsafe _sparse_log_softmax _sparse_mm.default _sparse_mm.reduce
 aten: _sparse_mm_reduce_impl _sparse_softmax _sparse_sum _to_dense _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc
 aten: _to_sparse_csr coalesce smm sparse_bsc_tensor.ccol_row_value_size sparse_bsr_tensor.crow_col_value_size
 aten: sparse_compressed_tensor.comp_plain_value_size sparse_coo_tensor.indices sparse_coo_tensor.indices_size
 aten: sparse_coo_tensor.size sparse_csc_tensor.ccol_row_value_size sparse_csr_tensor.crow_col_value_size
 aten: sparse_sampled_addmm sspaddmm to_dense to_mkldnn to_sparse to_sparse_bsc to_sparse_bsr to_sparse_coo to_sparse_csc
 aten: to_sparse_csr
 sparse: aten._sparse_mm.default aten._sparse_mm.reduce aten.to.device aten.to.dtype aten.to.dtype_layout
 sparse.aten: _assert_tensor_metadata _coalesce _indices _log_softmax _nnz _softmax _sparse_addmm _sparse_log_softmax
 sparse.aten: _sparse_mm_reduce_impl _sparse_softmax _sparse_sum _to_copy _to_dense _values abs add addmm adjoint alias asin
 sparse.aten: asinh atan atanh bmm ccol_indices ceil clone coalesce col_indices crow_indices deg2rad detach div erf expm1
 sparse.aten: floor indices is_coalesced log1p matmul mm mul mv neg numpy_T rad2deg relu round row_indices sgn sign sin sinh
 sparse.aten: smm sparse_mask sparse_sampled_addmm sqrt square sspaddmm sub sum sym_numel sym_size t tan tanh to_dense
 sparse.aten: to_dense_backward transpose trunc values
graphflops.rules.special
 aten: acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp
 aten: exp2 expm1 i0 igamma igammac lgamma log log10 log1p log2 logaddexp logaddexp2 logit mvlgamma polygamma rsqrt sigmoid
 aten: sin sinc sinh special_airy_ai special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1
 aten: special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v
 aten: special_chebyshev_polynomial_w special_digamma special_entr special_erf special_erfc special_erfcx special_erfinv
 aten: special_exp2 special_expit special_expm1 special_gammainc special_gammaincc special_gammaln
 aten: special_hermite_polynomial_h special_hermite_polynomial_he special_i0 special_i0e special_i1 special_i1e
 aten: special_laguerre_polynomial_l special_legendre_polynomial_p special_log1p special_log_ndtr special_logit
 aten: special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1
 aten: special_multigammaln special_ndtr special_ndtri special_polygamma special_psi special_scaled_modified_bessel_k0
 aten: special_scaled_modified_bessel_k1 special_shifted_chebyshev_polynomial_t special_shifted_chebyshev_polynomial_u
 aten: special_shifted_chebyshev_polynomial_v special_shifted_chebyshev_polynomial_w special_sinc
 aten: special_spherical_bessel_j0 special_xlog1py special_xlogy special_zeta sqrt tan tanh xlogy
graphflops.rules.statistics
 aten: _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _segment_reduce_backward bincount
 aten: corrcoef cov dist histc histogram.bin_ct histogram.bins_tensor histogramdd histogramdd.TensorList_bins kthvalue
 aten: median mode nanmedian nanquantile quantile segment_reduce trace trace_backward
graphflops.rules.symmetric_memory
 symm_mem: _low_contention_all_gather _low_contention_reduce_scatter fused_all_gather_matmul fused_matmul_reduce_scatter
 symm_mem: multimem_all_reduce multimem_one_shot_all_reduce one_shot_all_reduce one_shot_all_reduce_copy two_shot_all_reduce
graphflops.rules.torchao
 export: access_subclass_inner_tensor
 torchao: choose_qparams_affine choose_scale_float8 dequantize_affine dequantize_affine_float8_non_decomposed
 torchao: quantize_affine quantize_affine_float8_non_decomposed
graphflops.rules.torchao_products
 blocksparse: addmm bsr_to_dense int_addmm
 float8_sparse: fp8_sparse_mm
 torchao: _scaled_embedding_bag da8w4_linear_cpu da8w4_linear_prepack_cpu float8_linear_cpu float8_linear_prepack_cpu
 torchao: int_matmul int_scaled_matmul mx_fp8_bf16 qscaled_dot_product reference_dqlinear_int4
 torchao: rowwise_scaled_linear_sparse_cutlass_f8f8 swizzle_mm swizzle_scaled_mm to_sparse_semi_structured_cutlass_sm9x_f8
graphflops.rules.transformers
 _diffusers_flash_attn_3: _flash_attn_forward
 transformers: grouped_mm_fallback grouped_mm_fallback_backward
 transformers_msa: sparse_atten
graphflops.rules.vector_norm
 aten: frobenius_norm linalg__powsum linalg_matrix_norm linalg_norm linalg_vector_norm native_norm norm nuclear_norm
 aten: nuclear_norm.dim
graphflops.rules.view_copies
 aten: _fw_primal_copy _make_dual_copy _reshape_alias_copy _reshape_copy alias_copy as_strided_copy detach_copy
 aten: diagonal_copy expand_copy narrow_copy permute_copy select_copy slice_copy split_copy split_with_sizes_copy
 aten: squeeze_copy t_copy transpose_copy unbind_copy unfold_copy unsqueeze_copy view_as_complex_copy view_as_real_copy
 aten: view_copy view_copy.dtype
graphflops.rules.views
 aten: _fw_primal _lazy_clone _make_dual _mkldnn_reshape _mkldnn_transpose _mkldnn_transpose_ _reshape_alias
 aten: _sparse_broadcast_to _unsafe_view adjoint alias as_strided as_strided_ atleast_1d atleast_2d atleast_3d
 aten: broadcast_tensors broadcast_to data detach expand expand_as flatten imag lift lift_fresh mH mT matrix_H meshgrid
 aten: moveaxis movedim numpy_T permute ravel real requires_grad_ reshape reshape_as squeeze squeeze_ swapaxes swapaxes_
 aten: swapdims swapdims_ t t_ transpose transpose_ unflatten unflatten_dense_tensors unfold unsqueeze unsqueeze_ view
 aten: view.dtype view_as view_as_complex view_as_real
graphflops.rules.vision
 torchvision: deform_conv2d nms ps_roi_align ps_roi_pool roi_align roi_pool
graphflops.rules.vision_backward
 torchvision: _deform_conv2d_backward _ps_roi_align_backward _ps_roi_pool_backward _roi_align_backward _roi_pool_backward
 torchvision: qnms qroi_align""")

BACKWARDS = unpacked("""\
graphflops.rules.activation
 aten: _prelu_kernel celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid mish prelu relu
 aten: relu6 rrelu rrelu_with_noise rrelu_with_noise_functional selu silu softplus softshrink threshold
graphflops.rules.attention_backward
 aten: _cudnn_attention_forward _efficient_attention_forward _flash_attention_forward _scaled_dot_product_attention_math
 aten: _scaled_dot_product_attention_math_for_mps _scaled_dot_product_cudnn_attention
 aten: _scaled_dot_product_efficient_attention _scaled_dot_product_flash_attention
 aten: _scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_fused_attention_overrideable
 aten: scaled_dot_product_attention
 torch_attn: _varlen_attn
graphflops.rules.collectives
 _c10d_functional: all_gather_into_tensor all_gather_into_tensor_coalesced all_reduce all_reduce_coalesced all_to_all_single
 _c10d_functional: reduce_scatter_tensor reduce_scatter_tensor_coalesced
 _c10d_functional_autograd: all_gather_into_tensor all_to_all_single reduce_scatter_tensor
 _dtensor: shard_dim_alltoall
graphflops.rules.contraction
 aten: _trilinear bilinear einsum
graphflops.rules.ctc
 aten: _ctc_loss ctc_loss
graphflops.rules.cumulative
 aten: cummax cummin cumprod cumsum
graphflops.rules.dropout
 aten: _fused_dropout alpha_dropout dropout feature_alpha_dropout feature_dropout native_dropout
graphflops.rules.embedding
 aten: _embedding_bag embedding embedding_bag embedding_bag.padding_idx
graphflops.rules.fake_quantize
 aten: fake_quantize_per_channel_affine fake_quantize_per_tensor_affine
 quantized_decomposed: fake_quant_per_channel
graphflops.rules.flex
 higher_order: flex_attention
graphflops.rules.indexing
 aten: _index_put_impl _index_put_impl_ _unsafe_index _unsafe_index_put gather index index_add index_add_ index_copy
 aten: index_copy_ index_fill index_fill_ index_put index_put_ index_select put put_ scatter scatter_ scatter_add
 aten: scatter_add_ take take_along_dim
graphflops.rules.joining
 aten: _cat _stack block_diag cartesian_prod cat column_stack combinations concat concatenate dstack flatten_dense_tensors
 aten: hstack row_stack stack vstack
graphflops.rules.linalg_backward
 aten: _linalg_det _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_svd _lu_with_info cholesky det linalg_cholesky
 aten: linalg_cholesky_ex linalg_cond linalg_det linalg_eig linalg_eigh linalg_eigvals linalg_eigvalsh
 aten: linalg_householder_product linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_matrix_norm linalg_matrix_sqrth
 aten: linalg_norm linalg_polar linalg_qr linalg_slogdet linalg_svd linalg_svdvals logdet lu_unpack nuclear_norm
 aten: nuclear_norm.dim orgqr ormqr qr slogdet svd
 prims: svd
graphflops.rules.loss
 aten: binary_cross_entropy binary_cross_entropy_with_logits huber_loss kl_div l1_loss mse_loss poisson_nll_loss
 aten: smooth_l1_loss soft_margin_loss
graphflops.rules.loss_class
 aten: cross_entropy_loss nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd
 torch_nn: _linear_cross_entropy_batch_chunked _linear_cross_entropy_batch_chunked_no_reduction
graphflops.rules.matmul
 aten: addmv chain_matmul dot inner linalg_matmul linalg_matrix_power linalg_multi_dot linalg_vecdot matmul matrix_power mv
 aten: vdot
graphflops.rules.movement
 aten: _autocast_to_full_precision _autocast_to_reduced_precision _pin_memory _to_copy chalf clone contiguous
 aten: lift_fresh_copy masked_select pin_memory type_as
 aten.to: device dtype dtype_layout other prim_Device prim_dtype prim_other
graphflops.rules.norm_backward
 aten: _batch_norm_impl_index _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional
 aten: _fused_rms_norm _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
 aten: batch_norm cudnn_batch_norm group_norm instance_norm layer_norm miopen_batch_norm native_batch_norm native_group_norm
 aten: native_layer_norm rms_norm
graphflops.rules.onnx.attention
 onnx: Attention
graphflops.rules.onnx.recurrent
 onnx: GRU LSTM RNN
graphflops.rules.padding
 aten: _pad_circular _pad_enum col2im constant_pad_nd im2col pad reflection_pad1d reflection_pad2d reflection_pad3d
 aten: replication_pad1d replication_pad2d replication_pad3d
graphflops.rules.parts
 aten: chunk diagonal dsplit hsplit linalg_diagonal narrow narrow_copy select select_copy slice slice_copy split split_copy
 aten: split_with_sizes split_with_sizes_copy tensor_split unbind unbind_copy unsafe_chunk unsafe_split
 aten: unsafe_split_with_sizes vsplit
graphflops.rules.pointwise
 aten: _neg_view_copy abs absolute add addcdiv addcmul arctan2 atan2 ceil clamp clamp_max clamp_min clip copysign deg2rad
 aten: div div.Scalar_mode div.Tensor_mode divide divide.Scalar_mode divide.Tensor_mode fix float_power floor floor_divide
 aten: fmax fmin fmod frac frexp heaviside hypot lerp masked_fill max.other maximum min.other minimum mul multiply
 aten: nan_to_num neg negative pow rad2deg reciprocal remainder round rsub sgn sign special_round square sub subtract
 aten: true_divide trunc where
graphflops.rules.pool
 aten: _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
 aten: adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d fractional_max_pool3d max_pool1d
 aten: max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d
 aten: max_unpool3d
graphflops.rules.random
 aten: _standard_gamma bernoulli binomial normal poisson
graphflops.rules.rearrange
 aten: as_strided_scatter channel_shuffle diag diag_embed diagflat diagonal_scatter flip fliplr flipud
 aten: native_channel_shuffle pixel_shuffle pixel_unshuffle repeat repeat_interleave.self_Tensor repeat_interleave.self_int
 aten: roll rot90 select_scatter slice_scatter tile tril triu
graphflops.rules.recurrent
 aten: gru.data gru.input gru_cell lstm.data lstm.input lstm_cell rnn_relu.data rnn_relu.input rnn_relu_cell rnn_tanh.data
 aten: rnn_tanh.input rnn_tanh_cell
graphflops.rules.reduce
 aten: amax amin logsumexp max mean min prod special_logsumexp std std_mean sum var var_mean
graphflops.rules.resample
 aten: _upsample_bicubic2d_aa _upsample_bicubic2d_aa.vec _upsample_bilinear2d_aa _upsample_bilinear2d_aa.vec
 aten: _upsample_lanczos2d_aa _upsample_lanczos2d_aa.vec _upsample_nearest_exact1d _upsample_nearest_exact1d.vec
 aten: _upsample_nearest_exact2d _upsample_nearest_exact2d.vec _upsample_nearest_exact3d _upsample_nearest_exact3d.vec
 aten: grid_sampler grid_sampler_2d grid_sampler_3d upsample_bicubic2d upsample_bicubic2d.vec upsample_bilinear2d
 aten: upsample_bilinear2d.vec upsample_linear1d upsample_linear1d.vec upsample_nearest1d upsample_nearest1d.vec
 aten: upsample_nearest2d upsample_nearest2d.vec upsample_nearest3d upsample_nearest3d.vec upsample_trilinear3d
 aten: upsample_trilinear3d.vec
graphflops.rules.similarity
 aten: _weight_norm _weight_norm_interface cosine_similarity
graphflops.rules.softmax
 aten: _log_softmax _masked_softmax _safe_softmax _softmax log_softmax softmax special_log_softmax special_softmax
graphflops.rules.solve
 aten: linalg_matrix_exp matrix_exp
graphflops.rules.solve_backward
 aten: _cholesky_solve_helper _linalg_solve_ex cholesky_inverse cholesky_solve inverse linalg_inv linalg_inv_ex linalg_lstsq
 aten: linalg_lu_solve linalg_pinv linalg_pinv.atol_rtol_float linalg_pinv.atol_rtol_tensor linalg_solve linalg_solve_ex
 aten: linalg_solve_triangular linalg_tensorinv linalg_tensorsolve lu_solve pinverse triangular_solve
graphflops.rules.sort
 aten: sort topk
graphflops.rules.special
 aten: acos acosh arccos arccosh arcsin arcsinh arctan arctanh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp
 aten: exp2 expm1 i0 lgamma log log10 log1p log2 logaddexp logaddexp2 logit polygamma rsqrt sigmoid sin sinc sinh
 aten: special_digamma special_entr special_erf special_erfc special_erfcx special_erfinv special_exp2 special_expit
 aten: special_expm1 special_gammaln special_i0 special_i0e special_i1 special_i1e special_log1p special_log_ndtr
 aten: special_logit special_ndtr special_ndtri special_polygamma special_psi special_sinc special_xlog1py special_xlogy
 aten: sqrt tan tanh xlogy
graphflops.rules.statistics
 aten: kthvalue median mode nanmedian trace
graphflops.rules.vector_norm
 aten: frobenius_norm linalg_vector_norm norm
graphflops.rules.view_copies
 aten: _reshape_alias_copy _reshape_copy alias_copy permute_copy squeeze_copy t_copy transpose_copy unsqueeze_copy
 aten: view_as_complex_copy view_as_real_copy view_copy
graphflops.rules.views
 aten: as_strided broadcast_tensors broadcast_to expand expand_as expand_copy meshgrid unfold""")
