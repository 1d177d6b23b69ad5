// Stands in for a gloo header that the torch wheel leaves out. See context.h.
#pragma once
