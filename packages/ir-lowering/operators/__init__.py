"""Every operator of torch's own database, in every dtype, compiled and compared with eager."""
