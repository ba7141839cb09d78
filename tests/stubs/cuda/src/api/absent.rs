//! What would need a GPU: kernels, modules and graphs. There, so that a caller gets an error and not a missing function.

use crate::{code, driver::call};

/// Functions that refuse, whatever they are given: in C, arguments that are not looked at do no harm.
macro_rules! absent {
    ($($function:ident),* $(,)?) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $function() -> i32 {
            let name = stringify!($function);
            call(name, |driver| driver.refuse(code::NOT_SUPPORTED, format!("{name}: the double runs no kernels")))
        }
    )*};
}

absent!(
    cuModuleLoadData,
    cuModuleUnload,
    cuModuleGetFunction,
    cuFuncSetAttribute,
    cuLaunchKernel,
    cuTensorMapEncodeTiled,
    cuTensorMapEncodeIm2col,
    cuStreamBeginCapture_v2,
    cuStreamEndCapture,
    cuGraphInstantiateWithFlags,
    cuGraphLaunch,
    cuGraphUpload,
    cuGraphGetNodes,
    cuGraphNodeGetType,
    cuGraphExecDestroy,
    cuGraphDestroy,
);
