"""What a browser sees at `/`: a page of plain modules, served from files beside this one."""
