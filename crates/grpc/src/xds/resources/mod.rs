//! Builds Envoy's resources from what Rouse knows of routes and services.
