//! Kernel launches.
//!
//! Grids and blocks have one dimension here. The parameter is copied at the call. A launch that could never run is
//! refused at the call, as on the real driver; attributes are accepted and, but for the cooperative one, without effect.

use std::sync::Arc;

use crate::config;
use crate::context;
use crate::error::{
    COOPERATIVE_LAUNCH_TOO_LARGE, INVALID_HANDLE, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES, NOT_SUPPORTED,
    Result,
};
use crate::module::{self, Function};
use crate::stream;
use crate::types::{CUfunction, CUlaunchConfig, CUstream, In};
use crate::work::{Launch, Work};

const ATTRIBUTE_COOPERATIVE: u32 = 2;

/// Checks a launch and takes its parameter.
pub fn prepare(
    function: Arc<Function>,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    params: In<usize>,
    extra: In<usize>,
) -> Result<Launch> {
    let info = function.info;
    let threads = block.iter().try_fold(1u32, |product, n| product.checked_mul(*n)).unwrap_or(u32::MAX);
    if grid.contains(&0) || threads == 0 || threads > 1024 {
        return Err(INVALID_VALUE);
    }
    // The limits that the device attributes name.
    if grid[0] > i32::MAX as u32 || grid[1].max(grid[2]) > 65535 || block[2] > 64 {
        return Err(INVALID_VALUE);
    }
    if grid[1..] != [1, 1] || block[1..] != [1, 1] {
        config::log(&format!("kernel {}: only one-dimensional launches are emulated", info.name));
        return Err(NOT_SUPPORTED);
    }
    if threads > info.max_threads {
        return Err(LAUNCH_OUT_OF_RESOURCES);
    }
    if i64::from(shared_bytes) > i64::from(function.max_dynamic_shared()) {
        return Err(INVALID_VALUE);
    }
    let arg = module::argument(info, params, extra)?;
    Ok(Launch { function, grid, block, shared_bytes, arg })
}

struct Request {
    function: CUfunction,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    stream: CUstream,
    params: In<usize>,
    extra: In<usize>,
    cooperative: bool,
}

fn launch(request: Request) -> Result {
    let function = module::get(request.function)?;
    let stream = stream::get(request.stream)?;
    if !stream.context.is(context::current()?) {
        return Err(INVALID_HANDLE);
    }
    if function.context.is_some_and(|owner| !owner.is(stream.context)) {
        return Err(INVALID_HANDLE);
    }
    let launch = prepare(
        function.clone(),
        request.grid,
        request.block,
        request.shared_bytes,
        request.params,
        request.extra,
    )?;
    if request.cooperative {
        let per_sm = function.blocks_per_sm(request.block[0], request.shared_bytes as usize);
        if i64::from(request.grid[0]) > i64::from(per_sm) * i64::from(config::get().sms) {
            return Err(COOPERATIVE_LAUNCH_TOO_LARGE);
        }
    }
    // A captured kernel is loaded when its graph is instantiated.
    if stream.state.lock().capture.is_none() {
        function.load(stream.context);
    }
    stream.submit(Work::Kernel(launch)).map(|_| ())
}

cu! {
    fn cuLaunchKernel / cuLaunchKernel_ptsz (
        function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: CUstream, params: In<usize>, extra: In<usize>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(Request { function, grid, block, shared_bytes, stream, params, extra, cooperative: false })
    }

    fn cuLaunchKernelEx / cuLaunchKernelEx_ptsz (
        config: In<CUlaunchConfig>, function: CUfunction, params: In<usize>, extra: In<usize>,
    ) {
        let config = config.get()?;
        let attributes = config.attrs.array(config.num_attrs as usize)?;
        let cooperative = attributes.iter().any(|a| a.id == ATTRIBUTE_COOPERATIVE && a.value[0] as u32 != 0);
        launch(Request {
            function,
            grid: config.grid,
            block: config.block,
            shared_bytes: config.shared_bytes,
            stream: config.stream,
            params,
            extra,
            cooperative,
        })
    }

    fn cuLaunchCooperativeKernel / cuLaunchCooperativeKernel_ptsz (
        function: CUfunction, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32,
        shared_bytes: u32, stream: CUstream, params: In<usize>,
    ) {
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(Request { function, grid, block, shared_bytes, stream, params, extra: In::NULL, cooperative: true })
    }
}
