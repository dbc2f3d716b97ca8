"""Operators that models are built of: products, convolutions, norms, attention, collectives, control flow."""

from __future__ import annotations

from graphflops.ops.table import Row

_SDPA = "query key value mask dropout_p is_causal scale enable_gqa"
_CONV = "x weight bias stride padding dilation groups"

# fmt: off
LAYERS: tuple[Row, ...] = (
    # Products
    Row(
        "matmul", "product", "a b", "matmul linalg_matmul", onnx="MatMul",
        microsoft="FusedMatMul(a,b,turn_a,turn_b) TransposeMatMul(a,b,turn_a,turn_b)",
    ),
    Row("mm", "product", "a b", "mm"),
    Row("bmm", "product", "a b", "bmm"),
    Row("mv", "product", "a b", "mv"),
    Row("dot", "product", "a b", "dot vdot"),
    Row("addmm", "product", "bias a b", "addmm _addmm_activation"),
    Row("baddbmm", "product", "bias a b", "baddbmm addbmm"),
    Row("addmv", "product", "bias a b", "addmv"),
    Row("linear", "product", "a weight bias", "linear mkldnn_linear"),
    Row("gemm", "product", "a b bias turn_a turn_b", onnx="Gemm"),
    Row("fused_gemm", "product", "a b bias turn_a turn_b", microsoft="FusedGemm", facts=("activation",)),
    Row("einsum", "product", "equation xs", "einsum", onnx="Einsum(*xs)"),
    Row("int_matmul", "product", "a b", "_int_mm", onnx="MatMulInteger", microsoft="MatMulInteger16"),
    Row("qlinear_matmul", "product", "a a_scale a_zero b b_scale b_zero", onnx="QLinearMatMul"),
    Row("scaled_mm", "product", "a b", "_scaled_mm _scaled_mm_v2"),
    Row("grouped_mm", "product", "a b offsets", "_grouped_mm _scaled_grouped_mm(a,b,scale_a,scale_b,offsets)"),
    Row("matmul_nbits", "product", "a b", microsoft="MatMulNBits MatMulBnb4"),
    Row("tensordot", "product", "a b", "tensordot"),
    Row("bilinear", "product", "a b weight bias", "bilinear"),
    # Convolutions, pooling, resampling
    Row(
        "convolution", "convolution", _CONV,
        "conv1d conv2d conv3d convolution(x,weight,bias,stride,padding,dilation,transposed,output_padding,groups)"
        " _convolution(x,weight,bias,stride,padding,dilation,transposed,output_padding,groups) _convolution_mode"
        " cudnn_convolution(x,weight,padding,stride,dilation,groups)"
        " mkldnn_convolution(x,weight,bias,padding,stride,dilation,groups)"
        " thnn_conv2d(x,weight,kernel_size,bias) _conv_depthwise2d(x,weight,kernel_size,bias)"
        " conv_depthwise3d(x,weight,kernel_size,bias) slow_conv3d(x,weight,kernel_size,bias)"
        " _slow_conv2d_forward(x,weight,kernel_size,bias) slow_conv3d_forward(x,weight,kernel_size,bias)"
        " slow_conv_dilated2d(x,weight,kernel_size,bias) slow_conv_dilated3d(x,weight,kernel_size,bias)"
        " convolution_overrideable(x,weight,bias,stride,padding,dilation,transposed,output_padding,groups)"
        " miopen_convolution(x,weight,bias,padding,stride,dilation,groups)"
        " miopen_depthwise_convolution(x,weight,bias,padding,stride,dilation,groups)"
        " _nnpack_spatial_convolution(x,weight,bias,padding,stride)",
        onnx="Conv", facts=("images",),
    ),
    Row("fused_convolution", "convolution", _CONV, microsoft="FusedConv", facts=("images", "activation")),
    Row(
        "conv_transpose", "convolution", _CONV,
        "conv_transpose1d(x,weight,bias,stride,padding,output_padding,groups,dilation)"
        " conv_transpose2d(x,weight,bias,stride,padding,output_padding,groups,dilation)"
        " conv_transpose3d(x,weight,bias,stride,padding,output_padding,groups,dilation)"
        " cudnn_convolution_transpose(x,weight) miopen_convolution_transpose(x,weight,bias)"
        " slow_conv_transpose2d(x,weight,kernel_size,bias) slow_conv_transpose3d(x,weight,kernel_size,bias)",
        onnx="ConvTranspose",
        facts=("images",),
    ),
    Row(
        "channels_last_convolution", "convolution", _CONV, microsoft="NhwcConv NhwcFusedConv",
        other="com.ms.internal.nhwc.Conv",
    ),
    Row("channels_last_conv_transpose", "convolution", _CONV, other="com.ms.internal.nhwc.ConvTranspose"),
    Row("blocked_convolution", "convolution", _CONV, other="com.microsoft.nchwc.Conv"),
    Row(
        "convolution_backward", "convolution",
        "grad x weight bias_sizes stride padding dilation transposed output_padding groups output_mask",
        "convolution_backward"
        " convolution_backward_overrideable(grad,x,weight,stride,padding,dilation,transposed,output_padding,groups,"
        "output_mask)"
        " _slow_conv2d_backward.output_mask(grad,x,weight,kernel_size,stride,padding,output_mask)",
    ),
    Row("conv_integer", "convolution", _CONV, onnx="ConvInteger", facts=("images",)),
    Row(
        "qlinear_conv", "convolution", "x x_scale x_zero weight", onnx="QLinearConv", microsoft="QLinearConv",
        facts=("images",),
    ),
    Row(
        "deform_conv", "convolution", "x weight offset", onnx="DeformConv", other="torchvision.deform_conv2d",
        facts=("images",),
    ),
    Row(
        "max_pool", "pooling", "x",
        "max_pool1d max_pool2d max_pool3d max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"
        " quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d", onnx="MaxPool", facts=("images", "selects"),
    ),
    Row("avg_pool", "pooling", "x", "avg_pool1d avg_pool2d avg_pool3d", onnx="AveragePool", facts=("images",)),
    Row(
        "adaptive_avg_pool", "pooling", "x shape",
        "adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d"
        " mkldnn_adaptive_avg_pool2d",
        facts=("images",),
    ),
    Row(
        "adaptive_max_pool", "pooling", "x shape", "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
        facts=("images", "selects"),
    ),
    Row("global_avg_pool", "pooling", "x", onnx="GlobalAveragePool", facts=("images",)),
    Row("qlinear_global_avg_pool", "pooling", "x x_scale x_zero", microsoft="QLinearGlobalAveragePool"),
    Row("global_max_pool", "pooling", "x", onnx="GlobalMaxPool", facts=("images",)),
    Row(
        "resize", "resampling", "x",
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d upsample_bilinear2d"
        " upsample_bicubic2d upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d"
        " _upsample_bilinear2d_aa _upsample_bicubic2d_aa",
        onnx="Resize Upsample", facts=("images", "keeps_values"),
    ),
    Row(
        "grid_sample", "resampling", "x grid", "grid_sampler grid_sampler_2d grid_sampler_3d _grid_sampler_2d_cpu_fallback",
        onnx="GridSample", microsoft="GridSample", facts=("images",),
    ),
    # Norms
    Row(
        "batch_norm", "normalisation", "x weight bias mean var training",
        "batch_norm native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional cudnn_batch_norm"
        " _native_batch_norm_legit.no_stats(x,weight,bias,training)"
        " _native_batch_norm_legit_no_training(x,weight,bias,mean,var) _batch_norm_with_update(x,weight,bias,mean,var)"
        " _batch_norm_no_update(x,weight,bias,mean,var)",
        onnx="BatchNormalization", facts=("images",),
    ),
    Row(
        "instance_norm", "normalisation", "x weight bias", "instance_norm", onnx="InstanceNormalization",
        facts=("images",),
    ),
    Row(
        "layer_norm", "normalisation", "x shape weight bias", "layer_norm native_layer_norm",
        onnx="LayerNormalization(x,weight,bias)",
    ),
    Row(
        "rms_norm", "normalisation", "x shape weight", "rms_norm _fused_rms_norm", onnx="RMSNormalization(x,weight)",
        microsoft="SimplifiedLayerNormalization(x,weight)", other="onnx.SimplifiedLayerNormalization(x,weight)",
    ),
    Row(
        "skip_norm", "normalisation", "x skip weight bias",
        microsoft="SkipLayerNormalization SkipSimplifiedLayerNormalization",
    ),
    Row(
        "group_norm", "normalisation", "x groups weight bias", "group_norm", onnx="GroupNormalization(x,weight,bias)",
        microsoft="GroupNorm(x,weight,bias)",
    ),
    Row("weight_norm", "other", "v g axis", "_weight_norm _weight_norm_interface"),
    Row(
        "weight_norm_backward", "other", "grad v g norms axis",
        "_weight_norm_interface_backward _weight_norm_differentiable_backward",
    ),
    Row("native_group_norm", "normalisation", "x weight bias", "native_group_norm"),
    Row("local_response_norm", "normalisation", "x", onnx="LRN", facts=("images",)),
    Row("lp_norm", "normalisation", "x axis", onnx="LpNormalization"),
    Row("mean_variance_norm", "normalisation", "x axes", onnx="MeanVarianceNormalization"),
    # Softmax
    Row("softmax", "softmax", "x axis", "softmax _softmax _safe_softmax special_softmax", onnx="Softmax"),
    Row("log_softmax", "softmax", "x axis", "log_softmax _log_softmax special_log_softmax", onnx="LogSoftmax"),
    Row("masked_softmax", "softmax", "x mask axis", "_masked_softmax"),
    Row("hardmax", "softmax", "x axis", onnx="Hardmax"),
    # Attention
    Row(
        "scaled_dot_product_attention", "attention", _SDPA,
        "scaled_dot_product_attention"
        " _scaled_dot_product_fused_attention_overrideable(query,key,value,mask,dropout_p,is_causal)"
        " _scaled_dot_product_efficient_attention(query,key,value,mask,compute_log_sumexp,dropout_p,is_causal)"
        " _scaled_dot_product_cudnn_attention(query,key,value,mask,compute_log_sumexp,dropout_p,is_causal)"
        " _scaled_dot_product_attention_math(query,key,value,mask,dropout_p,is_causal)"
        " _scaled_dot_product_attention_math_for_mps(query,key,value,mask,dropout_p,is_causal)"
        " _scaled_dot_product_flash_attention(query,key,value,dropout_p,is_causal)"
        " _scaled_dot_product_flash_attention.quantized(query,key,value,q_descale,k_descale,v_descale,dropout_p,is_causal)"
        " _scaled_dot_product_flash_attention_for_cpu(query,key,value,dropout_p,is_causal,mask)",
    ),
    Row(
        "scaled_dot_product_attention_backward", "attention", "grad query key value mask",
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_fused_attention_overrideable_backward"
        " _scaled_dot_product_cudnn_attention_backward(grad,query,key,value,out,logsumexp,philox_seed,philox_offset,mask)"
        " _scaled_dot_product_flash_attention_for_cpu_backward"
        "(grad,query,key,value,out,logsumexp,dropout_p,is_causal,mask)"
        " _scaled_dot_product_flash_attention_backward(grad,query,key,value)",
    ),
    Row(
        "flex_attention", "attention", "query key value score_mod block_mask scale options score_captures mask_captures",
        other="higher_order.flex_attention",
    ),
    Row(
        "flex_attention_backward", "attention",
        "query key value out logsumexp grad_out grad_logsumexp score_mod joint block_mask scale options score_captures"
        " mask_captures",
        other="higher_order.flex_attention_backward",
    ),
    Row("onnx_attention", "attention", "query key value mask past_key past_value", onnx="Attention"),
    Row(
        "multi_head_attention", "attention", "query key value bias padding mask past_key past_value",
        microsoft="MultiHeadAttention",
    ),
    Row(
        "group_query_attention", "attention", "query key value past_key past_value seqlens_k total_length cos sin mask",
        microsoft="GroupQueryAttention(query,key,value,past_key,past_value,seqlens_k,total_length,cos,sin,mask)",
    ),
    # Losses
    Row(
        "nll_loss", "loss", "x labels weight", "nll_loss nll_loss_nd nll_loss2d nll_loss_forward nll_loss2d_forward",
        onnx="NegativeLogLikelihoodLoss",
    ),
    Row("cross_entropy_loss", "loss", "x labels weight", "cross_entropy_loss", onnx="SoftmaxCrossEntropyLoss"),
    Row("multi_margin_loss", "loss", "x labels", "multi_margin_loss"),
    Row("mse_loss", "loss", "x target", "mse_loss"),
    Row("l1_loss", "loss", "x target", "l1_loss"),
    Row("smooth_l1_loss", "loss", "x target", "smooth_l1_loss"),
    Row("huber_loss", "loss", "x target", "huber_loss"),
    Row("binary_cross_entropy", "loss", "x target weight", "binary_cross_entropy"),
    Row("binary_cross_entropy_with_logits", "loss", "x target weight", "binary_cross_entropy_with_logits"),
    Row("kl_div", "loss", "x target", "kl_div"),
    # Recurrent cells and layers
    Row(
        "lstm", "recurrent", "x", "lstm lstm_cell mkldnn_rnn_layer _thnn_fused_lstm_cell", onnx="LSTM",
        microsoft="DynamicQuantizeLSTM",
    ),
    Row("gru", "recurrent", "x", "gru gru_cell _thnn_fused_gru_cell", onnx="GRU"),
    Row("rnn", "recurrent", "x", "rnn_tanh rnn_relu rnn_tanh_cell rnn_relu_cell", onnx="RNN"),
    Row("cudnn_rnn", "recurrent", "x", "_cudnn_rnn miopen_rnn"),
    # Randomness
    Row(
        "dropout", "dropout", "x p training",
        "dropout native_dropout feature_dropout alpha_dropout feature_alpha_dropout", onnx="Dropout",
        microsoft="BiasDropout BitmaskDropout",
    ),
    Row("bernoulli", "random", "x p", "bernoulli", onnx="Bernoulli"),
    Row(
        "rand", "random", "shape", "rand randn randint(high,shape) randint.low(low,high,shape) randperm(n)",
        onnx="RandomUniform RandomNormal",
    ),
    Row(
        "rand_like", "random", "x", "rand_like randn_like randint_like normal uniform exponential normal_functional",
        onnx="RandomUniformLike RandomNormalLike",
    ),
    Row("multinomial", "random", "x samples", "multinomial", onnx="Multinomial"),
    # Quantisation
    Row(
        "quantize", "quantisation", "x scale zero_point", "quantize_per_tensor quantize_per_channel",
        onnx="QuantizeLinear", microsoft="QuantizeLinear",
        other="quantized_decomposed.quantize_per_tensor quantized_decomposed.quantize_per_channel"
        " quantized_decomposed.quantize_per_token quantized_decomposed.quantize_per_channel_group"
        " torchao.quantize_affine(x,block_size,scale,zero_point) torchao.quantize_affine_float8_non_decomposed",
    ),
    Row(
        "dequantize", "quantisation", "x scale zero_point", "dequantize", onnx="DequantizeLinear",
        microsoft="DequantizeLinear",
        other="quantized_decomposed.dequantize_per_tensor quantized_decomposed.dequantize_per_channel"
        " quantized_decomposed.dequantize_per_token quantized_decomposed.dequantize_per_channel_group"
        " torchao.dequantize_affine(x,block_size,scale,zero_point) torchao.dequantize_affine_float8_non_decomposed",
        facts=("unpacks",),
    ),
    Row("dynamic_quantize", "quantisation", "x", onnx="DynamicQuantizeLinear"),
    # Collectives
    Row(
        "all_reduce", "collective", "x reduce_op group_name",
        other="_c10d_functional.all_reduce _c10d_functional.all_reduce_coalesced symm_mem.one_shot_all_reduce"
        " symm_mem.multimem_one_shot_all_reduce symm_mem.two_shot_all_reduce symm_mem.multimem_all_reduce"
        " symm_mem.one_shot_all_reduce_copy(buffer,x,reduce_op,group_name)"
        " c10d.allreduce_(x,group_name,reduce_op) c10d.allreduce_coalesced_(x,group_name,reduce_op)",
    ),
    Row(
        "all_gather", "collective", "x group_size group_name",
        other="_c10d_functional.all_gather_into_tensor _c10d_functional.all_gather_into_tensor_coalesced"
        " _c10d_functional.all_gather_into_tensor_out _c10d_functional_autograd.all_gather_into_tensor"
        " symm_mem._low_contention_all_gather(x,group_name) c10d._allgather_base_(out,x,group_name)"
        " c10d.allgather_into_tensor_coalesced_(out,x,group_name) c10d.allgather_(out,x,group_name)"
        " c10d.allgather_coalesced_(out,x,group_name)",
    ),
    Row(
        "reduce_scatter", "collective", "x reduce_op group_size group_name",
        other="_c10d_functional.reduce_scatter_tensor _c10d_functional.reduce_scatter_tensor_coalesced"
        " _c10d_functional.reduce_scatter_tensor_out _c10d_functional_autograd.reduce_scatter_tensor"
        " symm_mem._low_contention_reduce_scatter(x,reduce_op,group_name)"
        " c10d._reduce_scatter_base_(out,x,group_name,reduce_op) c10d.reduce_scatter_(out,x,group_name,reduce_op)"
        " c10d.reduce_scatter_tensor_coalesced_(out,x,group_name,reduce_op)",
    ),
    Row(
        "all_to_all", "collective", "x output_split_sizes input_split_sizes group_name",
        other="_c10d_functional.all_to_all_single _c10d_functional_autograd.all_to_all_single"
        " _dtensor.shard_dim_alltoall(x,gather_axis,shard_axis,group_name) c10d.alltoall_(out,x,group_name)"
        " c10d.alltoall_base_(out,x,group_name,output_split_sizes,input_split_sizes)",
    ),
    Row(
        "broadcast", "collective", "x src group_name",
        other="_c10d_functional.broadcast c10d.broadcast_(x,group_name,src)", facts=("to_one",),
    ),
    Row(
        "send", "collective", "x dst tag group_name", other="_c10d_functional.isend c10d.send(x,group_name,dst,tag)",
        facts=("to_one",),
    ),
    Row(
        "receive", "collective", "x src tag group_name", other="_c10d_functional.irecv c10d.recv(x,group_name,src,tag)"
        " c10d.recv_(x,group_name,src,tag)",
        facts=("to_one",),
    ),
    Row(
        "send_and_receive", "collective", "operators peers tags x group_name",
        other="_c10d_functional.batch_p2p_ops", facts=("to_one",),
    ),
    Row(
        "wait_tensor", "collective", "x",
        other="_c10d_functional.wait_tensor _c10d_functional.wait_tensors _c10d_functional._wrap_tensor_autograd",
    ),
    Row(
        "gathered_products", "other", "x b gather_axis group_name", other="symm_mem.fused_all_gather_matmul",
    ),
    Row(
        "scattered_product", "other", "x b reduce_op scatter_axis group_name",
        other="symm_mem.fused_matmul_reduce_scatter",
    ),
    # Control flow
    Row(
        "cond", "control", "condition then otherwise operands", onnx="If(condition,then,otherwise)",
        other="higher_order.cond higher_order.switch",
    ),
    Row(
        "while_loop", "control", "condition body operands", onnx="Loop(trips,condition,*operands)",
        other="higher_order.while_loop higher_order.while_loop_stack_output",
    ),
    Row("scan", "control", "body", onnx="Scan", other="higher_order.scan higher_order.associative_scan"),
    Row("map", "control", "body", onnx="SequenceMap", other="higher_order.map higher_order.map_impl"),
    Row("invoke_subgraph", "control", "body", other="higher_order.invoke_subgraph"),
    Row(
        "wrap", "control", "",
        other="higher_order.wrap higher_order.wrap_with_set_grad_enabled higher_order.wrap_activation_checkpoint"
        " higher_order.tag_activation_checkpoint higher_order.hints_wrapper higher_order.strict_mode"
        " higher_order.with_effects higher_order.local_map_hop",
    ),
    Row(  # exporting writes these down, Python does not run them
        "check", "control", "",
        "_assert_tensor_metadata _assert_scalar _functional_assert_scalar sym_constrain_range "
        "sym_constrain_range_for_size",
    ),
    Row("wrap_with_autocast", "control", "", other="higher_order.wrap_with_autocast"),
    Row("flat_apply", "control", "function operands name x *index", other="higher_order.flat_apply"),
)
# fmt: on
