"""What the pages build, one file a chapter."""

from .attention import *
from .costs import *
from .data import *
from .decoder import *
from .encoder import *
from .frameworks import *
from .positions import *
from .reverse import *
from .today import *
