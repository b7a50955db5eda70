//! Definition, unit and description of every figure, used alike by real and simulated runs; table, JSON, OpenMetrics and HTML.
