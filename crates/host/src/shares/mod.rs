//! What cgroups give VMs and services, and what they allow them: weights, shares that are due, limits.

pub(crate) mod due;
pub(crate) mod limits;
pub(crate) mod service_weights;
pub(crate) use microslice_policy::weights;
