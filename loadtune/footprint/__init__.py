"""Where does memory go?"""
